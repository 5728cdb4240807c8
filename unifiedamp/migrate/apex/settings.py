"""What Apex calls things, and what ``amp.initialize`` was told."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, dotted, literal, parameters
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


def level_of(source: Source, call: cst.Call) -> object:
    """Return the level of a call of ``initialize``, also one that a variable has from a constant; else None."""
    given = argument(call, "opt_level", 3)
    if given is None or not dotted(given):
        return "O1" if given is None else literal(given)
    scope = source.scope(call)
    if isinstance(scope, cst.FunctionDef) and dotted(given) in parameters(scope):
        return None
    made = source.assigns(dotted(given))
    return literal(made[0].value) if len(made) == 1 else None


def settings(work: Work, call: cst.Call) -> dict[str, str | None]:
    """Return the code of the session's arguments, and say what is left out.

    Raises:
        CannotMigrate: the session has no loss scale at this level.
    """
    source = work.source
    level = argument(call, "opt_level", 3)
    enabled = argument(call, "enabled", 2)
    policy = '"O1"' if level is None else source.code(level)
    policy = _with_norms(work, call, policy, "O1" if level is None else literal(level))
    if enabled is not None and literal(enabled) is not True:
        policy = f'{bracketed(policy)} if {source.code(enabled)} else "O0"'
    _say_what_has_no_meaning(work, call)
    return {"policy": policy, "loss_scale": _loss_scale(work, call, level_of(source, call))}


def bracketed(code: str) -> str:
    """Return code that may stand before an ``if``."""
    return f"({code})" if " if " in code else code


def _with_norms(work: Work, call: cst.Call, policy: str, level: object) -> str:
    """Return the policy's code with ``keep_batchnorm_fp32``, where the level does not do that anyway.

    Raises:
        CannotMigrate: level and flag are no constants or names.
    """
    norm = argument(call, "keep_batchnorm_fp32", 6)
    if norm is None or dotted(norm) == "None" or level in ("O0", "O1"):
        return policy  # O0 casts no layer, and O1 takes None alone
    value = {"True": True, "False": False}.get(str(literal(norm)))
    if value is not None and level == ("O2" if value else "O3"):
        return policy
    if value is not None and isinstance(level, str):
        return f'"{level};keep_norm_float32={str(value).lower()}"'
    code = work.source.code(norm)
    constant = isinstance(level, str)
    if not (dotted(norm) or value is not None) or not (constant or dotted(cst.parse_expression(policy))):
        raise work.stop(call, f"keep_batchnorm_fp32={code} with opt_level={policy}", "assign both to names before")
    base = level if constant else f"{{{policy}}}"
    chosen = f'f"{base};keep_norm_float32={f"{{{code}}}" if value is None else str(value).lower()}"'
    return chosen if value is not None else f"{policy} if {code} is None else {chosen}"


def _loss_scale(work: Work, call: cst.Call, level: object) -> str | None:
    """Return the code of the session's loss scale; None for the level's own.

    Raises:
        CannotMigrate: a scale for parameters in float16.
    """
    source = work.source
    given = argument(call, "loss_scale", 8)
    code = "None" if given is None else source.code(given)
    bounds = {"min_scale": argument(call, "min_loss_scale"), "max_scale": argument(call, "max_loss_scale")}
    known = {key: source.code(value) for key, value in bounds.items() if value is not None}
    value = literal(given)
    if code == "None" and level in ("O0", "O3"):
        return None  # Apex scales nothing there, whatever the bounds
    if level == "O3" and _number(value) == 1.0:
        return None
    if level == "O3" and value is not None:
        raise work.stop(call, f"opt_level=\"O3\" with loss_scale={code}, and a session scales no losses for parameters "
                        "in float16", 'opt_level="O2", or leave loss_scale out')  # fmt: skip
    if code == "None" or value == "dynamic":
        known = _start(bounds["max_scale"], known) | known
        if known:
            return dynamic(work.names, **known)
        return '"dynamic"' if level == "O0" else None
    if known:
        work.note(call, "min_loss_scale and max_loss_scale were left out", "they hold for a dynamic loss scale alone")
    if level == "O3" or not isinstance(level, str):
        work.note(call, f"loss_scale={code} may come with opt_level=\"O3\"",
                  "ua.Amp refuses a loss scale for parameters in float16: leave it out there, or use O2")  # fmt: skip
    return code if _number(value) is None or not isinstance(value, str) else str(_number(value))


def _start(bound: cst.BaseExpression | None, known: dict[str, str]) -> dict[str, str]:
    """Apex begins at 2**16, or at ``max_loss_scale`` where that is below."""
    value = literal(bound)
    if bound is None or (isinstance(value, int | float) and value >= 2.0**16):
        return {}
    code = known["max_scale"]
    return {"initial_scale": code if isinstance(value, int | float) else f"min(2.0**16, {code})"}


def _say_what_has_no_meaning(work: Work, call: cst.Call) -> None:
    for key in NO_MEANING:
        given = argument(call, key)
        if given is not None and work.source.code(given) != "None":
            work.note(call, f"{key}= was left out", "choose the policy that does it: see policies.md")
    many = argument(call, "num_losses")
    if many is not None and literal(many) != 1:
        work.note(call, "num_losses= was left out", "all losses of a session share one scale")


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None
