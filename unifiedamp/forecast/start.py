"""What ``amp.forecast`` checks."""

from __future__ import annotations

from collections.abc import Sequence

from ..backend import Backend
from ..errors import ConfigError, PolicyError, StepOrderError, UnsupportedError, nearest
from ..training.step_loop import StepLoop
from .choice import ALL_FORMATS, FORMATS
from .run import ForecastRun
from .scaled_formats import scalings_of
from .totals import Totals

STEPS, MAX_ERROR = 50, 0.1
"""Defaults of ``amp.forecast``."""


def start_forecast(
    backend: Backend, loop: StepLoop, steps: int, max_error: float, formats: Sequence[str]
) -> ForecastRun:
    """Return a run that has begun to count; see ``Amp.forecast``.

    Args:
        backend: the session's.
        loop: its steps, which the run then follows.
        steps, max_error, formats: as the session was asked.
    """
    backend.require("forecast", "amp.forecast")
    check_settings(steps, max_error, formats)
    check_policy(backend)
    if loop.listener is not None and not loop.listener.stopped:
        raise StepOrderError("amp.forecast: this session records or forecasts already; stop() that first")
    if not loop.order.slots:
        raise StepOrderError("amp.forecast: prepare a model and an optimizer first; there is nothing to count yet")
    if loop.policies is not None:
        switch, now = loop.policies.schedule.next_switch(loop.policies.step), loop.policies.step
        if switch is not None and switch < now + steps:
            raise PolicyError(
                f"amp.forecast: the schedule changes the policy at iteration {switch}, within the next {steps} (now is "
                f"{now}): ask for at most {switch - now} steps, or begin after it"
            )
    wanted = scalings_of(formats)
    lacking = [each for each in formats if set(scalings_of([each])) - set(backend.forecaster.scalings)]
    if lacking:
        raise UnsupportedError(
            f"amp.forecast: backend {backend.name!r} does not count what {', '.join(lacking)} would lose, whose scales "
            f"belong to rows or blocks; leave them out of formats: {', '.join(FORMATS)}"
        )
    run = ForecastRun(backend, steps, max_error, tuple(formats), Totals(), wanted)
    loop.listener = run
    return run


def check_settings(steps: object, max_error: object, formats: Sequence[str], of: str = "amp.forecast: ") -> None:
    """Refuse settings of a forecast.

    Raises:
        ConfigError: one is wrong; the message begins with ``of``.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ConfigError(f"{of}steps must be a whole number of at least 1, got {steps!r}")
    if not isinstance(max_error, (int, float)) or isinstance(max_error, bool) or not 0 < max_error < 1:
        raise ConfigError(f"{of}max_error must be a number between 0 and 1, got {max_error!r}")
    if isinstance(formats, str) or not formats:
        raise ConfigError(f"{of}formats must be a list of {', '.join(ALL_FORMATS)}, got {formats!r}")
    for each in formats:
        if each not in ALL_FORMATS:
            raise ConfigError(f"{of}unknown format {each!r}{nearest(str(each), ALL_FORMATS)}: {', '.join(ALL_FORMATS)}")


def check_policy(backend: Backend) -> None:
    """Refuse a session in which values are lost already.

    Raises:
        PolicyError: it computes in float16 or float8.
    """
    policy = backend.spec.policy
    used = {policy.param_dtype, policy.compute_dtype, *policy.layer_overrides.values()}
    lossy = used & {"float16", "float8"}
    if lossy:
        raise PolicyError(
            f"amp.forecast: policy {str(policy)!r} computes in {' and '.join(sorted(lossy))}, which has lost already "
            "what a forecast looks for; run it under 'float32' or 'mixed_bfloat16'"
        )
