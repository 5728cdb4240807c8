"""``torch.distributed.checkpoint``: a session is saved on some ranks and loaded on others."""

import math

import numpy as np
import pytest
import torch
from loops import batch, mlp, session
from ranks import run_ranks
from torch.nn.functional import cross_entropy

import unifiedamp as ua

SCALE = ua.DynamicLossScale(initial_scale=8.0, growth_interval=3)
BEFORE, AFTER = 4, 4


def made(ranks):
    """Return a session, a model sharded over the ranks if there are several, and its optimizer."""
    amp = session(loss_scale=SCALE)
    model = mlp()
    if ranks > 1:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    return (amp, *amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05)))


def train(amp, model, optimizer, seeds):
    """Train on whole batches, the same on every rank; one of them overflows."""
    for seed in seeds:
        x, y = batch(seed)
        x = x * math.inf if seed in (2, 5) else x
        amp.backward(lambda x=x, y=y: cross_entropy(model(x), y), optimizer)
        amp.step(optimizer)
    return amp.state_dict()["state"], {name: array.tolist() for name, array in amp.master_weights(model).items()}


def states(amp, model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    before = amp.state_dict()
    found = {
        "amp": amp,
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    assert amp.state_dict() == before, "torch's helper, which makes a step of zeros, moves no scale"
    return found


def saved(_rank, ranks, folder):
    import torch.distributed.checkpoint as dcp

    parts = made(ranks)
    train(*parts, range(BEFORE))
    dcp.save(states(*parts), checkpoint_id=folder)
    return True


def resumed(_rank, ranks, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    amp, model, optimizer = parts = made(ranks)
    found = states(*parts)
    dcp.load(found, checkpoint_id=folder)
    loaded = amp.state_dict()["state"]
    set_model_state_dict(model, found["model"])
    set_optimizer_state_dict(model, optimizer, found["optimizer"])
    assert amp.state_dict()["state"] == loaded
    return train(*parts, range(BEFORE, BEFORE + AFTER))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4)])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_saved_on_some_ranks_and_loaded_on_others(tmp_path, before, after):
    """Training goes on as if it had not been interrupted."""
    state, weights = train(*made(1), range(BEFORE + AFTER))
    for answer in run_ranks(saved, before, str(tmp_path), count=before):
        assert answer is True, answer
    for answer in run_ranks(resumed, after, str(tmp_path), count=after):
        assert not isinstance(answer, str), answer
        assert answer[0] == state
        for name, array in weights.items():
            np.testing.assert_allclose(answer[1][name], array, rtol=1e-4, atol=1e-6)
