"""The line that makes the session, where the ``GradScaler`` was made."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ..nodes import argument, literal
from ..sessions import dynamic, session_line
from ..work import Work
from .arguments import device_of, enabled_of
from .regions import rewrite_regions
from .scaler import Scaler
from .words import SETTINGS


def make_session(work: Work, scaler: Scaler, regions: Mapping[cst.Call, str]) -> None:
    """Replace the scaler's line by the session's, and make the regions the session's."""
    source = work.source
    enabled = enabled_of(source, scaler.call)
    policy = next(iter(regions.values()))
    alike = enabled is not None and all(enabled_of(source, call) == enabled for call in regions)
    scale = _loss_scale(work, scaler.call)
    default = scale == '"dynamic"' and policy == "mixed_float16"
    code = f'"{policy}"'
    if alike:
        code = f'{code} if {enabled} else "float32"'
    if enabled is not None and not (alike and default):
        scale, default = f'{scale} if {enabled} else "none"', False
    arguments = {"policy": code, "loss_scale": None if default else scale, "device": _device(work, scaler, regions)}
    work.edits.statement(source.statement(scaler.made), session_line(work.names, scaler.session, "torch", **arguments))
    rewrite_regions(work, scaler, regions, policy, enabled if alike else None)


def _device(work: Work, scaler: Scaler, regions: Mapping[cst.Call, str]) -> str | None:
    """Return the session's device; a GPU is what it takes by itself."""
    calls = [scaler.call, *regions]
    if "torch.cuda.amp" in work.source.meaning(scaler.call.func) or argument(scaler.call, "device", 0) is None:
        calls = [*regions]
    first = next(filter(None, (device_of(work.source, call) for call in calls)), "'cuda'")
    if first == "'cuda'":
        return None
    return f'"{first[1:-1]}"' if first.startswith("'") else _visible(work, scaler, first)


def _visible(work: Work, scaler: Scaler, code: str) -> str | None:
    """Return a variable's code where the session's line can see it."""
    root = code.partition(".")[0]
    scope = work.source.scope(scaler.made)
    return code if root.isidentifier() and work.source.bound_in(root, scope) else None


def _loss_scale(work: Work, call: cst.Call) -> str:
    first = 0 if ".cuda." in work.source.meaning(call.func) else 1
    settings: dict[str, str | None] = {}
    for position, (old, new) in enumerate(SETTINGS.items(), first):
        given = argument(call, old, position)
        settings[new] = None if given is None else work.source.code(given)
    start = literal(argument(call, "init_scale", first))
    if isinstance(start, int | float) and start > 2.0**24:
        settings["max_scale"] = settings["initial_scale"]
    return dynamic(work.names, **settings)
