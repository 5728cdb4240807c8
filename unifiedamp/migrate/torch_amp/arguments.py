"""What ``torch.amp`` calls things, and what an autocast region or a ``GradScaler`` was given."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, dotted, literal, roots, walk
from ..source import Source
from ..work import Work

NAME = "torch.amp"
OLD_IMPORTS = ("torch.cuda.amp", "torch.amp", "torch.autocast", "torch.cpu.amp", "torch.GradScaler")
AUTOCAST = (
    "torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast",
    "torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast", "torch.cpu.amp.autocast",
)  # fmt: skip
SCALERS = (
    "torch.amp.GradScaler", "torch.GradScaler", "torch.cuda.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler",
    "torch.amp.grad_scaler.GradScaler",
)  # fmt: skip
CUSTOM = tuple(f"torch.{where}.custom_{way}" for where in ("amp", "cuda.amp") for way in ("fwd", "bwd"))
POLICIES = {"torch.float16": "mixed_float16", "torch.half": "mixed_float16", "torch.bfloat16": "mixed_bfloat16"}
SETTINGS = {"init_scale": "initial_scale", "growth_factor": "growth_factor", "backoff_factor": "backoff_factor"}
SETTINGS |= {"growth_interval": "growth_interval"}
GETTERS = {"get_growth_factor": "growth_factor", "get_backoff_factor": "backoff_factor"}
GETTERS |= {"get_growth_interval": "growth_interval", "is_enabled": "enabled"}
CLIPS = {"torch.nn.utils.clip_grad_norm_": ("clip_grad_norm", "max_norm")}
CLIPS |= {"torch.nn.utils.clip_grad_value_": ("clip_grad_value", "clip_value")}


def device_of(source: Source, call: cst.Call) -> str | None:
    """Return the code of a call's device type, a constant in single quotes."""
    meaning = source.meaning(call.func)
    if ".cuda." in meaning or ".cpu." in meaning:
        return "'cpu'" if ".cpu." in meaning else "'cuda'"
    given = argument(call, "device", 0) if meaning in SCALERS else argument(call, "device_type", 0)
    if given is None:
        return "'cuda'"
    value = literal(given)
    return repr(value) if isinstance(value, str) else source.code(given)


def enabled_of(source: Source, call: cst.Call) -> str | None:
    """Return the code of ``enabled=``, or None where it is always on."""
    given = enabled_in(source, call)
    return None if given is None else source.code(given)


def enabled_in(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """Return what ``enabled=`` is given, or None where it is always on."""
    meaning = source.meaning(call.func)
    position = {"autocast": 0 if ".cuda." in meaning else 2}.get(meaning.rpartition(".")[2])
    given = argument(call, "enabled", position)
    return None if given is None or literal(given) is True else given


def policy_code(policy: str) -> str:
    """Return the code of a policy: of a name, or of what :func:`policy_of` returned as code."""
    return f'"{policy}"' if policy.isidentifier() else policy


def policy_of(work: Work, call: cst.Call, home: cst.FunctionDef | cst.Module) -> str:
    """Return the policy that an autocast region's dtype stands for; code where a variable holds the dtype.

    Args:
        work: the file.
        call: what makes the region.
        home: where the session is made, which must see the variable.

    Raises:
        CannotMigrate: the dtype is known only when the program runs.
    """
    source, dtype = work.source, argument(call, "dtype", 1)
    if dtype is None:
        return _default_policy(work, call)
    meaning = source.meaning(dtype)
    if isinstance(dtype, cst.IfExp) and _is_seen(source, call, dtype.test, home):
        names = [(POLICIES | {"torch.float32": "float32"}).get(source.meaning(x)) for x in (dtype.body, dtype.orelse)]
        if all(names):
            return f'("{names[0]}" if {source.code(dtype.test).strip()} else "{names[1]}")'
    if meaning not in POLICIES and isinstance(dtype, cst.Name):
        values = {source.meaning(assign.value) for assign in source.assigns(dtype.value)}
        meaning = values.pop() if len(values) == 1 else ""
    if meaning not in POLICIES and dotted(dtype) and work.source.bound_in(dotted(dtype).partition(".")[0], home):
        return f'{{torch.float16: "mixed_float16", torch.bfloat16: "mixed_bfloat16"}}.get({dotted(dtype)}, "float32")'
    if meaning not in POLICIES:
        raise work.stop(
            call, f"autocast to {source.code(dtype)}, known only when the program runs",
            "make the session by hand with policy='mixed_float16' or 'mixed_bfloat16'",
        )  # fmt: skip
    return POLICIES[meaning]


def _is_seen(source: Source, call: cst.Call, test: cst.BaseExpression, home: cst.FunctionDef | cst.Module) -> bool:
    """Whether a condition around a region's dtype means the same where the session is made."""
    calls = [one for one in walk(test) if isinstance(one, cst.Call | cst.NamedExpr | cst.Await)]
    scope = source.scope(call)
    here = scope is home or not any(source.bound_in(name, scope) for name in roots(test))
    return here and not calls and all(source.bound_in(name, home) or scope is not home for name in roots(test))


def _default_policy(work: Work, call: cst.Call) -> str:
    device = device_of(work.source, call)
    if device == "'cpu'":
        return "mixed_bfloat16"
    if device != "'cuda'":
        write = "the session takes mixed_float16, as torch does on GPUs; torch's default on a CPU is bfloat16"
        work.note(call, "autocast without a dtype on a device known when it runs", write)
    return "mixed_float16"


def first_setting(source: Source, call: cst.Call) -> int:
    """Return the position of a scaler's first setting: behind the device of ``torch.amp``'s."""
    named = isinstance(literal(argument(call, "device", 0)), str)  # torch.amp's, under one of two imports
    return 0 if ".cuda." in source.meaning(call.func) and not named else 1


def settings_of(source: Source, call: cst.Call) -> dict[str, str | None]:
    """Return a loss scale's settings, by our names → the code that a scaler is given for them."""
    settings: dict[str, str | None] = {}
    for position, (old, new) in enumerate(SETTINGS.items(), first_setting(source, call)):
        given = argument(call, old, position)
        settings[new] = None if given is None else source.code(given)
    return settings
