"""From the arguments of ``Amp`` to the backend and the settings in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .backend import Backend, Tuning
from .backend.tuning import compile_mode
from .config import values
from .config.reduction import checked_reduce_dtype
from .config.resolve import Resolved, resolve
from .measured import measured_run

if TYPE_CHECKING:
    from .measured.sessions import MeasuredSessions


class SessionStart(NamedTuple):
    """What a session begins with.

    Attributes:
        resolved: policy, loss scale and where they came from.
        run: the command that runs this script; None for a script that runs by itself.
    """

    backend: Backend
    resolved: Resolved
    compile_mode: str
    run: MeasuredSessions | None


def start_session(
    backend: str | None,
    policy: Any,
    loss_scale: Any,
    accumulate_steps: int,
    device: str | None,
    strict: bool,
    compile: str,
    tuning: Tuning,
    backend_options: Mapping[str, Any] | None,
    master_weights: bool,
    reduce_dtype: str | None,
    schedule: Any,
    total_steps: int | None,
) -> SessionStart:
    """Check and resolve the arguments of ``Amp``, and create the backend; raises what ``Amp`` raises."""
    values.check_accumulate_steps(accumulate_steps)
    values.check_flag(strict, "strict")
    run = measured_run()
    if run is not None:  # its settings win over the script's
        given = run.override(backend, device, policy, loss_scale, compile, backend_options, master_weights, schedule)
        policy, loss_scale, compile, backend_options, master_weights, schedule = given
        total_steps = None if schedule is None else total_steps
    mode = compile_mode(values.check_compile_mode(compile, "compile"), tuning)
    resolved = resolve(backend, policy, loss_scale, device, backend_options, master_weights, schedule, total_steps)
    summed = checked_reduce_dtype(reduce_dtype, resolved.loss_scale, run is not None)
    created = resolved.backend(accumulate_steps, device, strict, mode, master_weights, tuning, summed)
    return SessionStart(created, resolved, mode, run)
