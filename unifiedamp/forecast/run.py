"""``ForecastRun``: counts the steps of a session, and makes a forecast of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..backend import Backend
from ..backend.result import StepResult
from ..config import plugins
from ..errors import StepOrderError
from .counted import dump_counts

if TYPE_CHECKING:  # they import numpy
    from .forecast import Forecast
    from .totals import Totals


class ForecastRun:
    """What ``amp.forecast`` returns: a context that counts the next steps, and then leaves the session as it was.

    Args:
        backend: the session's.
        steps: to count.
        max_error: see ``Forecast``.
        formats: to make policies for.
        totals: to add to.
        scalings: that the backend counts too.

    Attributes:
        step: steps counted so far.
        steps: see the argument.
        totals: what was counted.
    """

    def __init__(
        self, backend: Backend, steps: int, max_error: float, formats: tuple[str, ...], totals: Totals,
        scalings: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self._backend, self.steps, self._max_error, self._formats = backend, steps, max_error, formats
        self.totals, self.step, self.stopped = totals, 0, False
        self._about = {**about(backend), "asked": steps}
        self._scalings = (scalings,) if scalings else ()
        backend.forecaster.begin(*self._scalings)

    @property
    def done(self) -> bool:
        """Whether all steps were counted, or the run was stopped."""
        return self.stopped

    def __enter__(self) -> ForecastRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop counting. Idempotent."""
        if not self.stopped:
            self.stopped = True
            self._backend.forecaster.end()

    def counted(self) -> dict[str, Any]:
        """Return what was counted as plain JSON values, see ``dump_counts``; ``Forecast.of_counted`` reads them."""
        return dump_counts({**self._about, "steps": self.step}, self.totals)

    def result(self) -> Forecast:
        """Return the forecast from the steps counted so far.

        Raises:
            StepOrderError: there is none, or no layer multiplied matrices in them.
        """
        if not self.step:
            raise StepOrderError(
                "amp.forecast: no step was counted; train inside 'with amp.forecast(steps=50) as run:' and then call "
                "run.result()"
            )
        if not self.totals.layers:
            raise StepOrderError(
                f"amp.forecast: no matrix product ran in {self.step} steps: of the prepared models, linear and "
                "convolutional layers are counted"
            )
        from .forecast import Forecast

        found = {**self._about, "steps": self.step}
        return Forecast.of(found, list(self.totals.layers.values()), self._max_error, self._formats)

    # -- called by the session -----------------------------------------------------------------------------------

    def before_unscale(self, optimizer: Any, index: int) -> None:
        """The gradients of a window are complete, and still raw."""
        if not self.stopped:
            self._backend.forecaster.note_gradients(optimizer)

    def after_optimizer(self, outcome: StepResult | None) -> None:
        """An optimizer had its step."""

    def due_within(self, steps: int) -> bool:
        """Whether one of the next ``steps`` is counted."""
        return not self.stopped

    def after_steps(self, count: int = 1) -> None:
        """``count`` iterations have ended."""
        if self.stopped or not count:
            return
        self.totals.add(self._backend.forecaster.end())
        self.step += count
        if self.step >= self.steps:
            self.stopped = True
        else:
            self._backend.forecaster.begin(*self._scalings)

    def discarded(self) -> None:
        """The iteration in progress was dropped: what was counted of it goes."""
        if not self.stopped:
            self._backend.forecaster.end()
            self._backend.forecaster.begin(*self._scalings)

    def state_loaded(self, optimizers: int) -> None:
        """The session goes on from a loaded state."""
        self.discarded()


def about(backend: Backend) -> dict[str, Any]:
    """Return what is said of a session; see ``Forecast.about``."""
    plugin, capabilities = plugins.load_plugin(backend.name), backend.capabilities()
    runs = {name: "" if answer else answer.reason for name, answer in capabilities.policies.items()}
    return {
        "backend": backend.name,
        "framework": f"{plugin.framework} {plugins.installed_version(plugin)}",
        "device": capabilities.device,
        "policy": str(backend.spec.policy),
        "runs": runs,
    }
