"""What ``unifiedamp record`` and ``unifiedamp explain`` do inside a script's session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import AmpError
from ..explain.layers import layer_rows
from ..recording.recorder import Recorder
from ..recording.sinks import JsonLines, Record
from ..recording.start import start_recording
from ..training.step_loop import StepLoop
from .request import RECORDING
from .run import MeasuredRun, nothing_prepared


class Recording:
    """Records the layers of a session from its first step on.

    Args:
        session: an ``Amp``.
        loop: its calls.
        run: the measured run.
    """

    records = True

    def __init__(self, session: Any, loop: StepLoop, run: MeasuredRun) -> None:
        self._backend, self._loop, self._run = session.backend, loop, run
        self._recorder: Recorder | None = None
        self._sinks: list[Callable[[Any], None]] = []
        vars(session)["record"] = self._join
        self._backend.training.run_uncompiled(True)

    def prepared(self) -> None:
        """Record from here on; what is prepared later is recorded too."""
        if self._recorder is not None:
            self._recorder.discarded()
            return
        if not self._loop.order.slots:
            return
        every, sink = self._run.request.every, _OfCountedProcess(self._run)
        try:
            self._recorder = start_recording(self._backend, self._loop, [sink], every, True, compare=False)
        except AmpError as error:
            self._run.fail(error)

    def begin(self) -> None:
        """Check that there is something to record.

        Raises:
            AmpError: nothing is prepared.
        """
        if self._recorder is None:
            self._run.fail(nothing_prepared("record"))

    def end(self) -> None:
        """End the recording."""
        if self._recorder is not None:
            self._recorder.stop()

    def flush(self) -> None:
        """Do nothing: each record was written."""

    def _join(self, *_targets: Any, **_options: Any) -> Any:
        """Stand in for ``amp.record`` in the script: what it would record, the command does."""
        return _Joined(self._recorder)


class _OfCountedProcess:
    """Writes the records of the counted process. Other ranks record too, as values may be reduced, and write nothing.

    Args:
        run: the measured run.
    """

    def __init__(self, run: MeasuredRun) -> None:
        self._run = run
        self._headers: list[Record] = []
        self._file: JsonLines | None = None

    def write(self, record: Record) -> None:
        """Write a record. Headers come before it is known which process is counted."""
        if self._run.log is None:
            if record["kind"] == "header":
                self._headers.append(record)
            return
        if self._file is None:
            self._file = JsonLines(self._run.folder / RECORDING)
            for header in self._headers:
                self._file.write(header)
        self._file.write(record)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class _Joined:
    """What a script's own ``amp.record`` returns: the recorder that runs, which it does not stop."""

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorder, name)

    def __enter__(self) -> _Joined:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def stop(self) -> None:
        """Do nothing: the command ends the recording."""


class Explaining:
    """Notes the plan of a session, and ends the script before its first step.

    Args:
        session: an ``Amp``.
        loop: its calls.
        run: the measured run.
    """

    records = False

    def __init__(self, session: Any, loop: StepLoop, run: MeasuredRun) -> None:
        self._session, self._run = session, run

    def prepared(self) -> None:
        """More may come: the plan is made when the session trains."""

    def begin(self) -> None:
        """Note the plan and end the script."""
        if self._run.log is not None:
            plan = self._session.explain().to_dict()
            layers = layer_rows(self._session, self._session.models) if self._session.models else {}
            warned = sorted(self._session.backend.spec.warned)
            self._run.log.write("plan", **plan, **layers, warnings=warned)
        self._run.leave()

    def end(self) -> None:
        """Unreachable: the script ended before."""

    flush = end
