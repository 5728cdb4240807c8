"""A copy of a prepared optimizer belongs to no session: it is torch's own, with float32 moments."""

import copy
import io

import pytest
import torch
from loops import batch, make_step, mlp, session


def saved(optimizer):
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved])
@pytest.mark.parametrize("dtype", ["float8", "bfloat16", None])
def test_it_steps_as_an_optimizer_with_these_moments(copied, dtype):
    """Oracle: a new AdamW that loads the prepared one's ``state_dict``."""
    amp = session("mixed_bfloat16" if dtype is None else f"mixed_bfloat16;state_dtype={dtype}")
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), 0.1))
    step = make_step(amp, model, optimizer)
    for _ in range(2):
        step(*batch())
    state = {param: [*known] for param, known in optimizer.state.items()}
    other = copied(optimizer)
    assert {param: [*known] for param, known in optimizer.state.items()} == state
    twins = [param.detach().clone().requires_grad_() for param in model.parameters()]
    native = torch.optim.AdamW(twins, 0.1)
    native.load_state_dict(optimizer.state_dict())
    for values in native.state.values():
        values.update({name: value.float() for name, value in values.items()})
    copies = other.param_groups[0]["params"]
    for params, each in ((twins, native), (copies, other)):
        for param in params:
            param.grad = torch.ones_like(param)
        each.step()
    assert all(map(torch.equal, copies, twins))
    step(*batch())
    assert amp.applied_steps == 3
    amp.close()
    assert "__getstate__" not in vars(optimizer)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved])
@pytest.mark.parametrize("more", ["", ";state_dtype=bfloat16"])
@pytest.mark.parametrize("update", ["kahan", "stochastic"])
def test_it_steps_by_itself_where_updates_were_rounded(copied, more, update):
    """Oracle: a new AdamW over bfloat16 parameters that loads the prepared one's ``state_dict``."""
    amp = session(f"bfloat16;update={update}{more}")
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), 0.1))
    make_step(amp, model, optimizer)(*batch())
    other = copied(optimizer)
    twins = [param.detach().clone().requires_grad_() for param in model.parameters()]
    native = torch.optim.AdamW(twins, 0.1)
    native.load_state_dict(optimizer.state_dict())
    copies = other.param_groups[0]["params"]
    for params, each in ((twins, native), (copies, other)):
        for param in params:
            param.grad = torch.ones_like(param)
        each.step()
    assert all(map(torch.equal, copies, twins))
    amp.close()
    assert "__getstate__" not in vars(optimizer)
