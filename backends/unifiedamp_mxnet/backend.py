"""The MXNet backend: Gluon models and Trainers, imperative and hybridized, MXNet 1.9 and 2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from unifiedamp.backend import (
    Backend,
    CallState,
    Capabilities,
    MatmulShape,
    NonFiniteReport,
    PlanRow,
    Policy,
    ScaleState,
    SessionSpec,
    StepResult,
    errors,
    recording,
    result,
)

from . import arrays, checks, devices, epsilons, facts, prefetch, shapes, tuning, usage, weights
from .adopt import AdoptedScaler, Everywhere
from .autocast import Region
from .bound import Bound
from .casts import Table
from .compile import OPTIONS, Compiler
from .convert import convert_model
from .custom import wrap_custom
from .layers import Boundaries
from .native import gluon, upstream
from .ops import relisted
from .recorder import Notes
from .scaler import ScaledLosses, Scaler, read_losses
from .scope import Scope


class MXNetBackend(Backend):
    """See ``unifiedamp.backend.Backend`` for what each method means."""

    name = "mxnet"

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        spec.check_options(OPTIONS, self.name)
        if upstream._amp_initialized:
            raise errors.ConfigError(
                "mxnet's own amp.init() was called in this process; it casts every operator for good and cannot be "
                "undone: leave it out, amp.autocast() does its work"
            )
        self.context = devices.resolve_context(spec.device)
        facts.check_policy(spec, self.context)
        self._scaler = Scaler(spec.loss_scale)
        self._tuned = tuning.Tuned(spec, self.context)
        self._undo: list[Callable[[], None]] = []
        self._boundaries = Boundaries()
        self._compiler = Compiler(spec)
        self._bound: dict[int, Bound] = {}
        self._names: dict[int, str] = {}
        self._make_tables()
        self._report = NonFiniteReport()
        self._notes: Notes | None = None

    # -- facts ---------------------------------------------------------------------------------------------------

    @classmethod
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        """See ``Backend``."""
        return facts.default_policy(devices.resolve_context(device))

    def capabilities(self) -> Capabilities:
        """See ``Backend``."""
        return facts.capabilities(self.context)

    def explain(self) -> list[PlanRow]:
        """See ``Backend``."""
        return facts.explain(self.spec, self.context, self._table)

    def tuning_rows(self) -> list[PlanRow]:
        """See ``Backend``."""
        return self._tuned.rows()

    def debugging_switches(self) -> dict[str, str]:
        """See ``Backend``."""
        return tuning.debugging_switches()

    # -- setting up ----------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[None]:
        """See ``Backend``."""
        return Scope(self.context)

    def is_model(self, obj: Any) -> bool:
        """See ``Backend``."""
        return isinstance(obj, gluon.Block)

    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """See ``Backend``."""
        for trainer in optimizers:
            checks.check_trainer(trainer)
        names = self._names | checks.parameter_names([*self._boundaries.models, *models])
        for model in models:
            checks.check_parameters(model.collect_params().values(), names, self.spec)
        for trainer in optimizers:
            checks.check_owner(trainer, names)
            checks.check_kvstore(trainer)
        self._names = names
        for model in models:
            self._take_model(model)
        for trainer in optimizers:
            self._bind(trainer)
        return list(models), list(optimizers)

    def _take_model(self, model: Any) -> None:
        checks.warn_of_fixed_graphs(model, self.spec)
        self._boundaries.add_model(model)
        self._tuned.note(model)
        self._make_tables()
        if self._compiler.active:
            self._compiler.hybridize(model)

    def _bind(self, trainer: Any) -> None:
        if id(trainer) not in self._bound:
            self._bound[id(trainer)] = Bound(trainer, self._names, self._scaler)
            self._undo += self._tuned.fuse(trainer)

    def close(self) -> None:
        """See ``Backend``."""
        for bound in self._bound.values():
            bound.close()
        while self._undo:
            self._undo.pop()()
        self._boundaries.close()

    # -- one step ------------------------------------------------------------------------------------------------

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        if enabled and policy is None:
            return self._train
        region = self._regions.get((enabled, policy))
        if region is None:
            region = Region(self._table_of(policy or self.spec.policy) if enabled else None)
            self._regions[(enabled, policy)] = region
        return region

    def _make_tables(self) -> None:
        """Begin with new tables: graphs traced under the old ones lack what a new model brings."""
        self._tables: dict[Policy, Table] = {}
        self._regions: dict[tuple[bool, Policy | None], Region] = {}
        self._table = self._table_of(self.spec.policy)
        self._train = Region(self._table)
        self._infer = Region(self._table, infer=True)

    def _table_of(self, policy: Policy) -> Table:
        table = self._tables.get(policy)
        if table is None:
            facts.check_region_policy(policy, self.context)
            table = Table(policy, scaled=self._scaler.enabled)
            table.optimize_layout = bool(self.spec.options.get("layout_optimization")) or self._tuned.layout
            self._boundaries.apply(table)
            self._tables[policy] = table
        return table

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        return self._infer

    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> ScaledLosses:
        """See ``Backend``."""
        losses = read_losses(loss)
        factor = self._scaler.state.scale / self.spec.accumulate_steps
        named = [self._bound[id(trainer)] for trainer in optimizers]

        def run(losses: list[Any], heads: list[Any] | None) -> None:
            self._differentiate(losses, heads, named)

        return ScaledLosses(self._scaler, losses, factor, run, single=not isinstance(loss, (list, tuple)))

    def _differentiate(self, losses: list[Any], heads: list[Any] | None, named: list[Bound]) -> None:
        bounds = self._bound.values()
        # The common case: one Trainer, the first backward pass of its window. Nothing to protect.
        if len(bounds) == 1 and not named[0].window.backwards:
            arrays.backward(losses, heads)
        else:
            self._protected(losses, heads, named)
        for bound in named:
            bound.window.note(losses)

    def _protected(self, losses: list[Any], heads: list[Any] | None, named: list[Bound]) -> None:
        """Differentiate so that pending gradients are added to, and those of Trainers not named stay as they are."""
        kept = [(bound.window, bound.window.set_aside(), bound in named) for bound in self._bound.values()]
        try:
            arrays.backward(losses, heads)
        finally:
            for window, gradients, is_named in kept:
                window.take_back(gradients if window.backwards else [], add=is_named)

    def unscale(self, optimizer: Any) -> None:
        """See ``Backend``."""
        self._bound[id(optimizer)].unscale()

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """See ``Backend``."""
        return self._bound[id(optimizer)].clip_norm(max_norm)

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """See ``Backend``."""
        self._bound[id(optimizer)].clip_value(clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """See ``Backend``."""
        return self._bound[id(optimizer)].gradients()

    def step(self, optimizer: Any, update: bool) -> StepResult:
        """See ``Backend``."""
        bound = self._bound[id(optimizer)]
        scaler = self._scaler
        scale = scaler.state.scale
        reason = bound.step()
        found = reason == result.NON_FINITE
        if found:
            self._report = bound.report
        if reason == result.NO_GRADIENTS:
            self.spec.warn(bound.no_gradients_message(), errors.StepWarning)
        else:
            scaler.count(found)
        if update:
            scaler.update()
        return StepResult.of(reason == result.APPLIED, found, reason, scale, scaler.state.scale)

    def update(self) -> None:
        """See ``Backend``."""
        self._scaler.update()

    def drop_gradients(self, optimizer: Any) -> None:
        """See ``Backend``."""
        self._bound[id(optimizer)].window.empty()

    # -- for code in the form of mxnet.amp -----------------------------------------------------------------------

    def cast_everywhere(
        self,
        compute: Iterable[str] | None = None,
        float32: Iterable[str] | None = None,
        conditional: Iterable[tuple[str, str, Iterable[str]]] | None = None,
    ) -> Everywhere:
        """Run operators under the session's policy outside regions too, until the object returned is ended.

        Args:
            compute, float32, conditional: lists in place of MXNet's own; see ``ops.relisted``.
        """
        table = Table(self.spec.policy, scaled=True)
        table.rules = relisted(table.rules, compute, float32, conditional)
        return Everywhere(table)

    def adopt(self, trainer: Any, after_step: Callable[[], None]) -> AdoptedScaler:
        """Give the session's scaler to a Trainer that is stepped by its own ``step``.

        Raises:
            WrongObjectError, PrepareError: see ``prepare``.
        """
        checks.check_trainer(trainer)
        checks.check_kvstore(trainer)
        scaler = trainer._amp_loss_scaler = AdoptedScaler(self._scaler, trainer, after_step)
        trainer._amp_original_scale = trainer._scale
        return scaler

    # -- state ---------------------------------------------------------------------------------------------------

    def read_state(self) -> ScaleState:
        """See ``Backend``."""
        return self._scaler.read()

    def write_state(self, state: ScaleState) -> None:
        """See ``Backend``."""
        self._scaler.write(state)

    def non_finite_report(self) -> NonFiniteReport:
        """See ``Backend``."""
        return self._report

    # -- recording -----------------------------------------------------------------------------------------------

    def begin_recording(self, activations: bool) -> None:
        """See ``Backend``; hybridized blocks run imperatively meanwhile, since a graph calls no hooks."""
        self._notes = Notes(self._boundaries.models, activations)

    def note_gradients(self, optimizer: Any) -> Sequence[str]:
        """See ``Backend``; on several contexts, the values of all of them are counted, before they are summed."""
        assert self._notes is not None
        return self._notes.gradients(self._bound[id(optimizer)], self._scaler.state.scale)

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

    def read_weights(self, model: Any) -> dict[str, Any]:
        """See ``Backend``; parameters are float32, and so true."""
        return weights.read(model)

    def write_weights(self, model: Any, values: Mapping[str, Any]) -> None:
        """See ``Backend``."""
        weights.write(model, values)

    def convert_model(self, model: Any, inputs: Sequence[Any], policy: Policy) -> Any:
        """See ``Backend``: a ``gluon.SymbolBlock`` whose graph holds the casts; its parameters stay float32."""
        return convert_model(model, *inputs, policy=policy.replace(param_dtype="float32"))

    # -- tools ---------------------------------------------------------------------------------------------------

    def matmul_shapes(self, models: Sequence[Any]) -> list[MatmulShape]:
        """See ``Backend``."""
        return list(shapes.matmul_shapes(models))

    def out_of_memory(self, error: BaseException) -> bool:
        """See ``Backend``."""
        return usage.out_of_memory(error)

    def compile(self, fn: Callable[..., Any], window: CallState, mode: str) -> Callable[..., Any]:
        """See ``Backend``: hybridized models; mode "max" also runs the step in bulk."""
        return self._compiler.compile(fn, self._boundaries.models, mode)

    def to_native(self, array: Any) -> Any:
        """See ``Backend``."""
        return arrays.to_native(array, self.context)

    def prefetch(self, batches: Iterable[Any], size: int) -> Iterable[Any]:
        """See ``Backend``."""
        return prefetch.ahead(batches, size, self.context)

    def to_numpy(self, tensor: Any) -> Any:
        """See ``Backend``."""
        return arrays.to_numpy(tensor)

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        """See ``Backend``."""
        return wrap_custom(target, cast_inputs)
