"""How a session takes part in a measured run: its arguments, and its steps."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ..config import environment, plugins
from ..config.resolve import resolve
from ..errors import AmpError
from ..policy import Policy
from ..training.step_loop import StepLoop
from . import overrides
from .describe import describe
from .request import RunRequest
from .run import MeasuredRun, join
from .steps import StepMeasure
from .tasks import Explaining, Recording

TASKS = {"record": Recording, "explain": Explaining}
"""What a request does → what does it."""

Settings = tuple[str | Policy | None, Any, str, Mapping[str, Any] | None, bool]


class MeasuredSessions:
    """The sessions of this process.

    Args:
        run: the measured run.
    """

    def __init__(self, run: MeasuredRun) -> None:
        self.run = run
        self._said: list[str] = []
        self._own = ""

    def override(
        self,
        backend: str | None,
        device: str | None,
        policy: str | Policy | None,
        loss_scale: Any,
        compile: str,
        backend_options: Mapping[str, Any] | None,
        master_weights: bool,
    ) -> Settings:
        """Return the arguments of ``Amp`` from ``policy`` on, as they are in force under this run."""
        self._own = _own_policy(backend, device, policy, loss_scale, backend_options, master_weights)
        given = overrides.Given(policy, loss_scale, compile, backend_options, master_weights)
        name = backend or environment.text_of("backend") or next(iter(plugins.installed_backends()), "")
        given, self._said = overrides.override(given, self.request.overrides, name, self.run.part)
        return given.policy, given.loss_scale, given.compile, given.backend_options, given.master_weights

    @property
    def request(self) -> RunRequest:
        """What the command asks for."""
        return self.run.request

    def follow(self, session: Any, loop: StepLoop) -> StepMeasure:
        """Return what follows the steps of a new session.

        Args:
            session: an ``Amp``.
            loop: its calls.
        """
        self.run.made()
        about = functools.partial(describe, session, loop, self._own, tuple(self._said))
        task = TASKS[self.request.do](session, loop, self.run) if self.request.do in TASKS else None
        measure = StepMeasure(self.run, session.backend, loop, about, task)
        session.backend.training.follow_native_steps(measure)
        return measure


def _own_policy(
    backend: str | None, device: str | None, policy: Any, loss_scale: Any, options: Any, master_weights: bool
) -> str:
    """Return the policy that the script itself would train under; empty where that is refused here."""
    try:
        return str(resolve(backend, policy, loss_scale, device, options, master_weights).policy)
    except AmpError:
        return ""


@functools.cache
def sessions_of(folder: str) -> MeasuredSessions:
    """Return how sessions take part in the run in a folder; one object for each process."""
    return MeasuredSessions(join(folder))
