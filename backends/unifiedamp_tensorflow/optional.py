"""What TensorFlow has of the calls that a backend may leave out, in the order of ``unifiedamp.backend.optional``; and
compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from unifiedamp.backend import (
    CallState,
    EnvironmentDefaults,
    LegacyBackend,
    MatmulShape,
    PlanRow,
    Policy,
    SessionSpec,
    errors,
    recording,
)

from . import capabilities
from .compiling.compile import CompiledStep
from .device import prefetch, switches, tuning, usage
from .distributed.replicas import Alone
from .models import convert, epsilons, shapes, weights
from .recording.recorder import Notes
from .training.fit_events import Told
from .training.gradients import Gradients
from .training.prepared_optimizer import Bound
from .training.scaler import DeviceScaler
from .training.tapes import Tapes
from .training.trainability import Trainability


class TensorFlowExtras(LegacyBackend):
    """The base of ``TensorFlowBackend`` that holds these calls, and what they read of the session.

    Attributes:
        bounds: what is kept of each prepared optimizer.
        trainability: which parameters train now.
        in_compiled: how many compiled steps, one within the other, are being traced.
    """

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        self.device = capabilities.device_of(spec.device)
        self.tuned = tuning.Tuned(spec, self.device)
        self.tapes = Tapes()
        self.replicas = Alone()
        self.bounds: list[Bound] = []
        self.scaler: DeviceScaler | None = None
        self.told = Told()
        self.notes: Notes | None = None
        self.in_compiled = 0
        self.trainability = Trainability(lambda: [id(v) for bound in self.bounds for v in bound.variables])
        self._models: list[Any] = []
        self._by_id: dict[int, Bound] = {}

    def _window(self, optimizer: Any, call: str) -> Gradients:
        """Return the window of the replica that calls."""
        self.replicas.check(f"amp.{call}")
        return self._by_id[id(optimizer)].window()

    # -- settings ------------------------------------------------------------------------------------------------

    @classmethod
    def environment_defaults(cls, device: str | None, options: Mapping[str, Any]) -> EnvironmentDefaults:
        """See ``Backend.environment_defaults``: TensorFlow's switches of its graph rewrite."""
        return switches.environment_defaults(capabilities.device_of(device), options)

    def tuning_rows(self) -> list[PlanRow]:
        """See ``Backend.tuning_rows``."""
        return self.tuned.rows()

    def debugging_switches(self) -> dict[str, str]:
        """See ``Backend.debugging_switches``."""
        return tuning.debugging_switches()

    # -- recording -----------------------------------------------------------------------------------------------

    def begin_recording(self, activations: bool) -> None:
        """See ``Backend.begin_recording``.

        Raises:
            UnsupportedError: the model is spread over several replicas.
        """
        if self.replicas.count > 1:
            raise errors.UnsupportedError(
                f"amp.record: the model is spread over {self.replicas.count} replicas of a tf.distribute strategy, and "
                "what each notes cannot leave it; record a run on one device"
            )
        self.notes = Notes(self._models, activations)

    def note_gradients(self, optimizer: Any) -> Sequence[str]:
        """See ``Backend.note_gradients``."""
        assert self.notes is not None
        window = self._window(optimizer, "record")
        scale = None if self.scaler is None else self.scaler.scale.read_value()
        self.notes.gradients(window.collect("record"), scale, window.loss)
        return list(window.present)

    def end_recording(self) -> recording.RecordedStep:
        """See ``Backend.end_recording``."""
        notes, self.notes = self.notes, None
        if notes is None:
            return recording.RecordedStep()
        notes.stop()
        return notes.read()

    def epsilons(self) -> list[recording.Epsilon]:
        """See ``Backend.epsilons``."""
        return list(epsilons.epsilons(self._models, [bound.inner for bound in self.bounds]))

    # -- whole models --------------------------------------------------------------------------------------------

    def read_weights(self, model: Any) -> dict[str, Any]:
        """See ``Backend.read_weights``; under mixed policies the variables are float32, and so true."""
        return weights.read(model, self._master_of)

    def write_weights(self, model: Any, values: Mapping[str, Any]) -> None:
        """See ``Backend.write_weights``."""
        weights.write(model, self._master_of, values)

    def _master_of(self, variable: Any) -> Any:
        found = (bound.masters.of(variable) for bound in self.bounds if bound.masters is not None)
        return next((master for master in found if master is not None), None)

    def convert_model(self, model: Any, inputs: Sequence[Any], policy: Policy) -> Any:
        """See ``Backend.convert_model``: a clone."""
        return convert.convert_model(model, inputs, policy, self.spec, self.device)

    # -- tools ---------------------------------------------------------------------------------------------------

    def matmul_shapes(self, models: Sequence[Any]) -> list[MatmulShape]:
        """See ``Backend.matmul_shapes``."""
        return list(shapes.matmul_shapes(models))

    def peak_memory(self) -> int | None:
        """See ``Backend.peak_memory``."""
        return usage.peak_memory(self.device)

    def out_of_memory(self, error: BaseException) -> bool:
        """See ``Backend.out_of_memory``."""
        return usage.out_of_memory(error)

    def kernel_times(self, run: Callable[[], Any]) -> dict[str, float]:
        """See ``Backend.kernel_times``."""
        return usage.kernel_times(run)

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        """See ``Backend.prefetch``: what ``tf.data`` has of its own for its datasets."""
        return prefetch.ahead(batches, size, self.device)

    # -- compiling -----------------------------------------------------------------------------------------------

    def compile(self, fn: Callable[..., Any], window: CallState, mode: str) -> Callable[..., Any]:
        """See ``Backend.compile``: ``tf.function``, by XLA with mode "max" or ``backend_options.tensorflow.xla``.

        Raises:
            UnsupportedError: at the first call, where XLA cannot compile the step (several replicas, graph rewrite).
        """
        self.looking_is_free = False
        return CompiledStep(fn, window, self, tuning.by_xla(self.spec, mode))

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Trace a compiled step inside; what was recorded is dropped."""
        self.in_compiled += 1
        try:
            with self.told.following():
                yield
        finally:
            self.in_compiled -= 1
            self.tapes.drop()

    def tracing(self) -> bool:
        """See ``Backend.tracing``."""
        return not tf.executing_eagerly()
