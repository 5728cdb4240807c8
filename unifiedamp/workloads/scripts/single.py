"""Runs of a script alone: its plan, a recording of its layers, and the counts of a forecast."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from ...measured.request import FORECAST, RECORDING, RunRequest
from ..workers import WorkerError
from .compare import ScriptOptions
from .run import ScriptRun

SIGN_EVERY = 10
"""Steps from one report of progress to the next."""


@dataclass(frozen=True)
class Recorded:
    """What was recorded or counted of a script.

    Attributes:
        content: of the file; what there is, where the script failed.
        steps: that the script made.
        session: what its session said of itself.
        reason: why it ended before the steps asked for; empty where it did not.
        failed: whether it failed, and did not just end.
        interrupted: the Ctrl-C or SIGTERM that ended it.
    """

    content: bytes
    steps: int
    session: Mapping[str, Any]
    reason: str
    failed: bool
    interrupted: KeyboardInterrupt | None = None


def explain_script(options: ScriptOptions, policy: str | None) -> dict[str, Any]:
    """Return the plan of a script's session; the script ends before its first step.

    Args:
        options: how to run it.
        policy: in the place of the script's; None leaves it.

    Raises:
        ConfigError: it ended without a session that trains.
    """
    request = RunRequest("explain", (1,), options.overrides(policy, None), command=os.getpid())
    with ScriptRun(options.command, request, options.timeout) as run:
        try:
            session, plan = run.expect("session"), dict(run.expect("plan"))
            run.finish()
        except WorkerError as error:
            raise ConfigError(str(error)) from error
    plan["warnings"] = [*session["said"], *plan["warnings"]]
    plan.pop("kind")
    return plan


def record_script(options: ScriptOptions, policy: str | None, every: int, at: Callable[[int], None]) -> Recorded:
    """Record a script's layers.

    Args:
        options: how to run it, and how many steps.
        policy: in the place of the script's; None leaves it.
        every: steps from one recorded step to the next.
        at: called with the number of steps so far.

    Raises:
        ConfigError: it ended before its first step.
    """
    overrides = options.overrides(policy, None)
    request = RunRequest("record", _turns(options), overrides, every=every, command=os.getpid())
    return _run(options, request, RECORDING, at)


def count_script(
    options: ScriptOptions, policy: str | None, at: Callable[[int], None], formats: Sequence[str] = ("bfloat16",)
) -> Recorded:
    """Count the values of a script's matrix products for a forecast; the content is JSON, see ``ForecastRun.counted``.

    Args:
        options: how to run it, and how many steps.
        policy: in the place of the script's; None leaves it.
        at: called with the number of steps so far.
        formats: to forecast.

    Raises:
        ConfigError: it ended before its first step.
    """
    overrides = options.overrides(policy, None)
    request = RunRequest("forecast", _turns(options), overrides, command=os.getpid(), formats=formats)
    return _run(options, request, FORECAST, at)


def _turns(options: ScriptOptions) -> tuple[int, ...]:
    steps = options.steps or 0
    return (*range(SIGN_EVERY, steps, SIGN_EVERY), steps)


def _run(options: ScriptOptions, request: RunRequest, file: str, at: Callable[[int], None]) -> Recorded:
    done, reason, failed, interrupted = 0, "", False, None
    with ScriptRun(options.command, request, options.timeout, options.output) as run:
        try:
            session = run.expect("session")
        except WorkerError as error:
            raise ConfigError(str(error)) from error
        try:
            while done < request.turns[-1]:
                done = run.expect("turn")["last"]
                at(done)
            run.wait()
        except WorkerError as error:
            reason, failed = str(error), error.kind != "early"
        except KeyboardInterrupt as error:
            reason, interrupted = "interrupted", error
        path = run.folder / file
        content = path.read_bytes() if path.exists() else b""
    return Recorded(content, done, session, reason, failed, interrupted)
