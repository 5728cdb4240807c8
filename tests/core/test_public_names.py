"""What users may rely on: the names, their signatures, and that each says what it is."""

import inspect
from typing import get_type_hints

import pytest

import unifiedamp as ua

AMP_CALLS = {
    "applied_steps", "autocast", "backward", "capabilities", "clip_grad_norm", "clip_grad_value", "close", "compile",
    "convert_model", "discard_step", "ema", "explain", "forecast", "from_config", "gradients", "inference",
    "load_master_weights", "load_state_dict", "loss_scale", "master_weights", "mp_policy", "observe", "policy",
    "prefetch", "prepare", "record", "scale_loss", "scope", "skip_if", "skipped_steps", "state_dict", "step",
    "to_native", "to_numpy", "unscale",
}  # fmt: skip


def public(cls):
    return {name for kind in cls.__mro__[:-1] for name in vars(kind) if not name.startswith("_")}


def test_every_name_is_there_and_documented():
    assert ua.__all__ == sorted(ua.__all__)
    for name in ua.__all__:
        assert inspect.getdoc(getattr(ua, name)), name


def test_nothing_else_is_public():
    modules = {name for name, value in vars(ua).items() if inspect.ismodule(value)}
    assert {name for name in vars(ua) if not name.startswith("_")} - modules == set(ua.__all__)


def test_calls_of_a_session():
    assert public(ua.Amp) == AMP_CALLS
    for name in AMP_CALLS:
        assert inspect.getdoc(getattr(ua.Amp, name)), name


@pytest.mark.parametrize("name", ["__init__", *sorted(AMP_CALLS - {"from_config"})])
def test_annotations_can_be_read(name):
    """By tools that do so at run time."""
    call = getattr(ua.Amp, name)
    call = call.fget if isinstance(call, property) else call
    assert "return" in get_type_hints(call)


def test_arguments_of_a_session():
    parameters = inspect.signature(ua.Amp).parameters
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["backend", "policy"]
    assert set(parameters) - set(positional) == {
        "loss_scale", "accumulate_steps", "device", "strict", "compile", "master_weights", "tuning",
        "backend_options", "reduce_dtype", "schedule", "total_steps",
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name in ua.__all__ if isinstance(getattr(ua, name), type)])
def test_errors_have_one_root(name):
    kind = getattr(ua, name)
    if issubclass(kind, Warning):
        assert issubclass(kind, ua.AmpWarning)
        assert issubclass(kind.error_class, ua.AmpError)
    elif issubclass(kind, Exception):
        assert issubclass(kind, ua.AmpError)


def test_values_are_frozen():
    for value in (ua.Policy(), ua.DynamicLossScale(), ua.StaticLossScale(), ua.NoLossScale(), ua.Tuning()):
        assert hash(value) == hash(type(value)())
        with pytest.raises(AttributeError):
            value.kind = "other"
