"""What Apex calls things, and what ``amp.initialize`` was told."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, literal
from ..sessions import dynamic
from ..source import Source
from ..work import Work

NAME = "apex.amp"
OLD_IMPORTS = ("apex.amp", "apex")
SAME = ("state_dict", "load_state_dict")
IN_LOOPS = ("scale_loss", "master_params", *SAME)
_REGISTER = "name the operation in the policy's `op_overrides`: see docs/policies.md"
HANDS = {
    "half_function": "decorate the function with `ua.amp_function(cast_inputs=\"compute\")`",
    "float_function": "decorate the function with `ua.amp_function(cast_inputs=\"float32\")`",
    "promote_function": "decorate the function with `ua.amp_function`",
    "register_half_function": _REGISTER,
    "register_float_function": _REGISTER,
    "disable_casts": "write `with amp.autocast(enabled=False):`",
}  # fmt: skip
CLIP = "torch.nn.utils.clip_grad_norm_"
NO_MEANING = ("cast_model_type", "patch_torch_functions", "master_weights", "cast_model_outputs")


def calls_of(source: Source, *names: str) -> list[cst.Call]:
    """Return the calls of these functions of ``apex.amp``, function by function."""
    return [call for name in names for call in source.calls(f"apex.amp.{name}")]


def settings(work: Work, call: cst.Call) -> dict[str, str | None]:
    """Return the code of the session's arguments, and say what is left out."""
    source = work.source
    level = argument(call, "opt_level", 3)
    enabled = argument(call, "enabled", 2)
    policy = '"O1"' if level is None else source.code(level)
    if enabled is not None and literal(enabled) is not True:
        policy = f'{policy} if {source.code(enabled)} else "O0"'
    _say_what_has_no_meaning(work, call)
    return {"policy": policy, "loss_scale": _loss_scale(work, call)}


def _loss_scale(work: Work, call: cst.Call) -> str | None:
    source = work.source
    bounds = {"min_scale": argument(call, "min_loss_scale"), "max_scale": argument(call, "max_loss_scale")}
    known = {key: source.code(value) for key, value in bounds.items() if value is not None}
    known = _start(bounds["max_scale"], known) | known
    if known:
        return dynamic(work.names, **known)
    given = argument(call, "loss_scale")
    if given is None or source.code(given) in ("None", '"dynamic"', "'dynamic'"):
        return None
    value = literal(given)
    return str(float(value)) if isinstance(value, str) and _is_number(value) else source.code(given)


def _start(bound: cst.BaseExpression | None, known: dict[str, str]) -> dict[str, str]:
    """Apex begins at 2**16, or at ``max_loss_scale`` where that is below."""
    value = literal(bound)
    if bound is None or (isinstance(value, int | float) and value >= 2.0**16):
        return {}
    code = known["max_scale"]
    return {"initial_scale": code if isinstance(value, int | float) else f"min(2.0**16, {code})"}


def _say_what_has_no_meaning(work: Work, call: cst.Call) -> None:
    norm = argument(call, "keep_batchnorm_fp32")
    if norm is not None and literal(norm) in (False, "False"):
        write = "the session keeps batch norm in float32: policy=ua.Policy.parse(...).replace(keep_norm_float32=False)"
        work.note(call, "keep_batchnorm_fp32=False", write)
    for key in NO_MEANING:
        given = argument(call, key)
        if given is not None and work.source.code(given) != "None":
            work.note(call, f"{key}= was left out", "choose the policy that does it: see policies.md")
    many = argument(call, "num_losses")
    if many is not None and literal(many) != 1:
        work.note(call, "num_losses= was left out", "all losses of a session share one scale")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
