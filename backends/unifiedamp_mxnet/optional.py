"""MXNet's optional calls, in the order of ``unifiedamp.backend.optional``; and compiling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from unifiedamp.backend import CallState, LegacyBackend, MatmulShape, PlanRow, Policy, SessionSpec, recording

from .compiling.compile import Compiler
from .device import devices, prefetch, tuning, usage
from .device.numpy_semantics import in_numpy_semantics
from .models import epsilons, shapes, weights
from .models.convert import convert_model
from .precision.layers import Boundaries
from .recording.recorder import Notes
from .training.prepared_optimizer import Bound
from .training.scaler import Scaler


class MXNetExtras(LegacyBackend):
    """The base of ``MXNetBackend`` that holds these calls, and what they read of the session."""

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        self.context = devices.resolve_context(spec.device)
        self._tuned = tuning.Tuned(spec, self.context)
        self._scaler = Scaler(spec.loss_scale)
        self._boundaries = Boundaries()
        self._bound: dict[int, Bound] = {}
        self._before: dict[int, list[Any]] = {}
        self._notes: Notes | None = None
        self._compiler = Compiler(spec)

    # -- settings ------------------------------------------------------------------------------------------------

    def tuning_rows(self) -> list[PlanRow]:
        """See ``Backend``."""
        return self._tuned.rows()

    def debugging_switches(self) -> dict[str, str]:
        """See ``Backend``."""
        return tuning.debugging_switches()

    # -- recording -----------------------------------------------------------------------------------------------

    def begin_recording(self, activations: bool) -> None:
        """See ``Backend``; hybridized blocks run another graph meanwhile, on MXNet 2 imperatively."""
        self._notes = Notes(self._boundaries.models, activations)

    @in_numpy_semantics
    def note_gradients(self, optimizer: Any) -> Sequence[str]:
        """See ``Backend``; on several contexts, the values of all of them are counted, before they are summed."""
        assert self._notes is not None
        return self._notes.gradients(self._bound[id(optimizer)], self._scaler.state.scale)

    @in_numpy_semantics
    def end_recording(self) -> recording.RecordedStep:
        """See ``Backend``."""
        notes, self._notes = self._notes, None
        if notes is None:
            return recording.RecordedStep()
        notes.stop()
        return notes.read()

    def epsilons(self) -> list[recording.Epsilon]:
        """See ``Backend``."""
        trainers = [bound.trainer for bound in self._bound.values()]
        return list(epsilons.epsilons(self._boundaries.models, trainers, self.spec.policy))

    # -- whole models --------------------------------------------------------------------------------------------

    @in_numpy_semantics
    def read_weights(self, model: Any) -> dict[str, Any]:
        """See ``Backend``."""
        return weights.read(model, self._masters_of)

    @in_numpy_semantics
    def write_weights(self, model: Any, values: Mapping[str, Any]) -> None:
        """See ``Backend``."""
        weights.write(model, self._masters_of, values)

    def _masters_of(self, param: Any) -> list[Any] | None:
        found = (bound.masters.of(param) for bound in self._bound.values() if bound.masters is not None)
        return next((arrays for arrays in found if arrays is not None), self._before.get(id(param)))

    @in_numpy_semantics
    def convert_model(self, model: Any, inputs: Sequence[Any], policy: Policy) -> Any:
        """See ``Backend``: a ``gluon.SymbolBlock`` whose graph holds the casts; its parameters stay float32."""
        wide = policy.replace(param_dtype="float32")
        return convert_model(model, *inputs, policy=wide, masters_of=self._masters_of)

    # -- tools ---------------------------------------------------------------------------------------------------

    def matmul_shapes(self, models: Sequence[Any]) -> list[MatmulShape]:
        """See ``Backend``."""
        return list(shapes.matmul_shapes(models))

    def out_of_memory(self, error: BaseException) -> bool:
        """See ``Backend``."""
        return usage.out_of_memory(error)

    @in_numpy_semantics
    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        """See ``Backend``."""
        return prefetch.ahead(batches, size, self.context)

    # -- compiling -----------------------------------------------------------------------------------------------

    @in_numpy_semantics
    def compile(self, fn: Callable[..., Any], window: CallState, mode: str) -> Callable[..., Any]:
        """See ``Backend``: hybridized models; mode "max" also runs the step in bulk."""
        return self._compiler.compile(fn, self._boundaries.models, mode)
