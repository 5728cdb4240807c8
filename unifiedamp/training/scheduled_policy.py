"""Changes the policy in the course of a run, between two iterations, as the schedule says.

The schedule counts iterations on the host: steps that end one, skipped ones included. Applied steps would have to be
read from the device. The count is the same on each rank and in each form of the step, and is saved with the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..backend import Backend, WrappedStep
from ..errors import UnsupportedError
from ..loss_scale import LossScale, ScaleState
from ..policy import Policy, PolicySchedule

SetState = Callable[[ScaleState], None]


class ScheduledPolicy:
    """The policy in force, and the iterations counted.

    Args:
        backend: the session's.
        schedule: the session's.
        loss_scale: the settings in force.
        set_state: sets the state of the loss scale, and tells the monitor.

    Attributes:
        schedule: see the argument.
        policy: the one in force.
        step: iterations that have ended.
        counts: order of calls at the entry of a compiled step → the iterations that end in it.
    """

    def __init__(self, backend: Backend, schedule: PolicySchedule, loss_scale: LossScale, set_state: SetState) -> None:
        self._backend, self._loss_scale, self._set_state = backend, loss_scale, set_state
        self.schedule, self.policy = schedule, schedule.at(0)
        self.step = self._inside = 0
        self.counts: dict[Any, int] = {}

    def count(self, iterations: int) -> None:
        """Count iterations that have ended."""
        self.step += iterations

    @property
    def due(self) -> bool:
        """Whether another policy is to come into force before the next forward pass."""
        return not self._inside and self.schedule.at(self.step) != self.policy

    def switch(self) -> None:
        """Put the policy of the present iteration in force.

        The loss scale starts anew where a policy that scales losses follows one that needs none.
        """
        before, policy = self.policy, self.schedule.at(self.step)
        self._put_in_force(policy)
        if policy.resolved_loss_scale.enabled and not before.resolved_loss_scale.enabled:
            initial, counted = self._loss_scale.initial_state(), self._backend.training.read_state()
            steps = {"applied_steps": counted.applied_steps, "skipped_steps": counted.skipped_steps}
            self._set_state(replace(initial, **steps))

    def _put_in_force(self, policy: Policy) -> None:
        if policy != self.policy:
            self._backend.policy_switcher.switch(policy)
            self.policy = policy

    @contextmanager
    def loading(self, step: int) -> Iterator[None]:
        """Go on at an iteration, with the policy in force there; inside, a state is checked and loaded for it. An
        exception takes both back.
        """
        found = self.step, self.policy
        self._go_on(step)
        try:
            self._put_in_force(self.schedule.at(step))
            yield
        except BaseException:
            self._go_on(found[0])
            self._put_in_force(found[1])
            raise

    def _go_on(self, step: int) -> None:
        self.step = step
        self._backend.policy_switcher.resume(step)

    # -- compiled steps --------------------------------------------------------------------------------------------

    @contextmanager
    def compiled_call(self) -> Iterator[None]:
        """Around the call of a compiled step, which keeps its policy to the end."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def check_seen(self) -> None:
        """Refuse a step whose Python runs only while a trace of the user's is made: its replays are not counted.

        Raises:
            UnsupportedError: always, outside compiled steps of the session's.
        """
        if not self._inside:
            raise UnsupportedError(
                "amp.step in a trace that amp.compile did not make: no Python runs when it is replayed, so the "
                "iterations of the session's schedule cannot be counted. Compile the step with amp.compile instead"
            )


class CountedStep(WrappedStep):
    """A step that notes how many iterations end in it, each time that its Python runs.

    Args:
        step: the user's.
        policies: where it is noted.
        order: the order of calls.
    """

    def __init__(self, step: Callable[..., Any], policies: ScheduledPolicy, order: Any) -> None:
        self.__name__ = getattr(step, "__name__", type(step).__name__)
        self.__wrapped__ = step  # for what reads the signature
        self._inner = step if isinstance(step, WrappedStep) else None
        self.step = step if self._inner is None else self._inner.step
        self._policies, self._order = policies, order

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        return self.around(self.step)(*args, **kwargs)

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same around another form of the step."""
        order, counts = self._order, self._policies.counts
        if self._inner is not None:
            step = self._inner.around(step)

        def call(*args: Any, **kwargs: Any) -> Any:
            entered, ended = order.snapshot(), order.ended
            result = step(*args, **kwargs)
            counts[entered] = order.ended - ended
            return result

        call.__name__, call.__wrapped__ = self.__name__, step  # type: ignore[attr-defined]  # functions have no such field
        return call
