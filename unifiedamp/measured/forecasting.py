"""What ``unifiedamp forecast`` does inside a script's session."""

from __future__ import annotations

import json
from typing import Any

from ..errors import AmpError, PolicyError
from ..forecast.run import ForecastRun
from ..forecast.start import MAX_ERROR, start_forecast
from ..training.step_loop import StepLoop
from .request import FORECAST
from .run import MeasuredRun, nothing_prepared


class Forecasting:
    """Counts the values of a session's matrix products from its first step on.

    Args:
        session: an ``Amp``.
        loop: its calls.
        run: the measured run.
    """

    records = True

    def __init__(self, session: Any, loop: StepLoop, run: MeasuredRun) -> None:
        self._backend, self._loop, self._run = session.backend, loop, run
        self._forecast: ForecastRun | None = None
        vars(session)["record"] = vars(session)["forecast"] = lambda *_, **__: _Ignored()
        self._backend.training.run_uncompiled(True)

    def prepared(self) -> None:
        """Count from here on; what is prepared later is counted too."""
        if self._forecast is not None:
            self._forecast.discarded()
            return
        if not self._loop.order.slots:
            return
        steps = self._run.request.turns[-1]
        try:
            self._forecast = start_forecast(self._backend, self._loop, steps, MAX_ERROR, self._run.request.formats)
        except PolicyError as error:
            self._run.fail(AmpError(f"{error}: unifiedamp forecast --policy float32"))
        except AmpError as error:
            self._run.fail(error)

    def begin(self) -> None:
        """Check that there is something to count.

        Raises:
            AmpError: nothing is prepared.
        """
        if self._forecast is None:
            self._run.fail(nothing_prepared("forecast"))

    def end(self) -> None:
        """Write what was counted."""
        if self._forecast is not None:
            self._forecast.stop()
            self.flush()

    def flush(self) -> None:
        """Write what was counted, without the device."""
        if self._forecast is not None and self._run.log is not None:
            whole = (self._run.folder / FORECAST).with_suffix(".tmp")
            whole.write_text(json.dumps(self._forecast.counted()), encoding="utf-8")
            whole.rename(self._run.folder / FORECAST)


class _Ignored:
    """What a script's own ``amp.record`` and ``amp.forecast`` return while the command counts."""

    done, step, recorded = False, 0, 0

    def __enter__(self) -> _Ignored:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def stop(self, *_: object) -> None:
        """Do nothing."""

    log = stop

    def result(self) -> None:
        """End the script's part: the command has the forecast.

        Raises:
            AmpError: always.
        """
        raise AmpError("amp.forecast: 'unifiedamp forecast' runs this script, and shows the forecast itself")
