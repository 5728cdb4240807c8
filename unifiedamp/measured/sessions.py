"""How a session takes part in a measured run: its arguments, and its steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..config import environment, plugins
from ..config.resolve import resolve
from ..errors import AmpError
from ..training.step_loop import StepLoop
from . import overrides
from .describe import describe
from .forecasting import Forecasting
from .request import RunRequest
from .run import MeasuredRun, join
from .steps import StepMeasure, Task
from .tasks import Explaining, Recording

TASKS: dict[str, Callable[[Any, StepLoop, MeasuredRun], Task]] = {
    "record": Recording, "forecast": Forecasting, "explain": Explaining,
}  # fmt: skip
"""What a request does → what does it."""

Settings = tuple[Any, Any, Any, Mapping[str, Any] | None, bool, Any]


class MeasuredSessions:
    """The sessions of this process.

    Args:
        run: the measured run.

    Attributes:
        run: see the argument.
        shared: follows the steps of a retired interface, which makes several sessions for one loop.
    """

    def __init__(self, run: MeasuredRun) -> None:
        self.run = run
        self.shared: StepMeasure | None = None
        self._said: list[str] = []
        self._own = self._asked = ""

    def override(
        self,
        backend: str | None,
        device: str | None,
        policy: Any,
        loss_scale: Any,
        compile: str,
        backend_options: Mapping[str, Any] | None,
        master_weights: bool,
        schedule: Any = None,
    ) -> Settings:
        """Return the arguments of ``Amp`` from ``policy`` on, as they are in force under this run.

        A policy of the command's takes the place of the script's schedule.
        """
        whole = self.run.part == overrides.WHOLE
        asked = policy if whole else self._asked or policy
        self._own = _own_policy(backend, device, asked, loss_scale if whole else None, backend_options, master_weights)
        given = overrides.Given(policy, loss_scale, compile, backend_options, master_weights)
        name = backend or environment.text_of("backend") or next(iter(plugins.installed_backends()), "")
        given, self._said = overrides.override(given, self.request.overrides, name, self.run.part)
        wanted = self.request.overrides.policy
        if schedule is not None and wanted is not None:
            self._said.append(f"the script pins schedule={str(schedule)!r}; measured under {wanted!r}")
            schedule = None
        if self._asked and wanted is not None and self._asked != wanted:
            self._said.append(f"the script pins policy={self._asked!r}; measured under {wanted!r}")
        return given.policy, given.loss_scale, given.compile, given.backend_options, given.master_weights, schedule

    def policy_in_force(self, own: str) -> str:
        """Return the policy that a retired interface is to compute under; see ``measured.policy_in_force``."""
        self._asked = own or self._asked
        return self.request.overrides.policy or own

    @property
    def request(self) -> RunRequest:
        """What the command asks for."""
        return self.run.request

    def follow(self, session: Any, loop: StepLoop) -> StepMeasure | None:
        """Return what follows the steps of a new session; None where they are followed elsewhere.

        Args:
            session: an ``Amp``.
            loop: its calls.
        """
        self.run.made()
        part = self.run.part
        if part == overrides.WHOLE:
            measure = self._measure(session, loop)
            session.backend.training.follow_native_steps(measure)
            return measure
        if self.shared is None:
            self.shared = self._measure(session, loop)
        session.backend.training.follow_native_steps(self.shared)
        if part == overrides.SCALER:
            self.shared.scale_from(session.backend)
            return None
        self.shared.describe = self._about(session)
        return self.shared

    def _measure(self, session: Any, loop: StepLoop) -> StepMeasure:
        task = TASKS[self.request.do](session, loop, self.run) if self.request.do in TASKS else None
        return StepMeasure(self.run, session.backend, loop, self._about(session), task)

    def _about(self, session: Any) -> Callable[[], dict[str, Any]]:
        policy = self.request.overrides.policy
        return functools.partial(describe, session, self._own, policy, tuple(self._said))


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
