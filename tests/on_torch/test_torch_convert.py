"""Copies of modules for inference: what torch's own tools do with them, and what cannot be copied."""

import io
import warnings

import pytest
import torch
from loops import batch, mlp, session, weights

import unifiedamp as ua

LOW = "bfloat16"


def converted(policy="mixed_bfloat16", model=None, **options):
    amp = session("float32", compile="off")
    model = amp.prepare(mlp(norm=True) if model is None else model)
    return amp, model, amp.convert_model(model, *options.pop("inputs", (batch()[0],)), policy=policy)


def nbytes(model):
    return sum(param.numel() * param.element_size() for param in model.parameters())


@pytest.mark.parametrize(
    ("policy", "wide", "output"),
    [
        ("mixed_bfloat16", {"1"}, torch.float32),
        ("bfloat16", set(), torch.bfloat16),
        ("mixed_float16;layers=3:float32", {"1", "3"}, torch.float32),
    ],
)
def test_parameters_have_the_policys_dtype(policy, wide, output):
    _, model, made = converted(policy)
    assert {name.split(".")[0] for name, p in made.named_parameters() if p.dtype is torch.float32} == wide
    assert made(batch()[0]).dtype is output
    assert model.training
    assert not made.training
    assert not any(param.requires_grad for param in made.parameters())
    assert all(param.dtype is torch.float32 and param.requires_grad for param in model.parameters())
    if not wide:
        assert nbytes(made) * 2 == nbytes(model)


def test_nothing_of_the_session_is_in_the_copy():
    amp, model, made = converted()
    assert len(made._forward_hooks) == len(made._forward_pre_hooks) == 1
    x, expected = batch()[0], made(batch()[0])
    amp.close()
    del amp, model
    torch.testing.assert_close(made(x), expected, rtol=0, atol=0)


def test_a_prepared_pure_model_with_masters_is_converted_from_them():
    amp = session("bfloat16", master_weights=True, compile="off")
    model = mlp()
    exact = [tensor.to(torch.float16) for tensor in weights(model)]
    model, _ = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    made = amp.convert_model(model, policy="float16")
    for ours, theirs in zip(weights(made), exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_torchs_tools_take_it():
    _, _, made = converted("mixed_bfloat16;layers=3:float32")
    x, expected = batch()[0], made(batch()[0])
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), expected)
    program = torch.export.export(made, (x,))
    assert torch.equal(program.module()(x), expected)
    other = converted("mixed_bfloat16;layers=3:float32", mlp(seed=5, norm=True))[2]
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x), expected)


def test_tied_parameters_stay_tied():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight = model[0].weight
    made = converted(model=model)[2]
    assert made[1].weight is made[0].weight


class Strict(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(torch.matmul(x.float(), torch.ones(8, 8)))


def test_what_does_not_run_is_refused_with_the_reason():
    with pytest.raises(ua.UnsupportedError, match="copy of Strict does not run in bfloat16.*dtype"):
        converted(model=Strict())
    with pytest.raises(ua.UnsupportedError, match="op_overrides .'softmax'. act in autocast regions"):
        converted("mixed_bfloat16;ops=softmax:float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(mlp(), batch()[0])
    with pytest.raises(ua.UnsupportedError, match="ScriptModule"):
        session("float32").convert_model(traced, policy=LOW)
    with pytest.raises(ua.PolicyError, match="must be a Policy or its name"):
        session("float32").convert_model(mlp(), policy=16)
