"""The MXNet backend: Gluon models and Trainers, imperative and hybridized, MXNet 1.9 and 2."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from unifiedamp.backend import (
    Capabilities,
    NonFiniteReport,
    PlanRow,
    Policy,
    ScaleState,
    SessionSpec,
    StepResult,
    errors,
    result,
)

from . import capabilities as facts
from .compiling.compile import check_options
from .device import arrays, devices
from .device.numpy_semantics import in_numpy_semantics
from .device.versions import gluon, upstream
from .optional import MXNetExtras
from .precision.autocast import Region, outside_regions
from .precision.casts import Table
from .precision.custom_functions import wrap_custom
from .precision.layers import walk
from .precision.low_precision_params import cast_parameters, layer_dtypes
from .precision.operations import relisted
from .precision.process_wide_casts import AdoptedScaler, Everywhere
from .precision.scope import Scope
from .training import master_weights
from .training import prepare as checks
from .training.native_calls import check_backward
from .training.prepared_optimizer import Bound
from .training.scaler import ScaledLosses, read_losses


class MXNetBackend(MXNetExtras):
    """See ``unifiedamp.backend.Backend`` for what each method means."""

    name = "mxnet"

    def __init__(self, spec: SessionSpec) -> None:
        check_options(spec)
        if upstream._amp_initialized:
            raise errors.ConfigError(
                "mxnet's own amp.init() was called in this process; it casts every operator for good and cannot be "
                "undone: leave it out, amp.autocast() does its work"
            )
        super().__init__(spec)
        facts.check_policy(spec, self.context)
        self._undo: list[Callable[[], None]] = []
        self._names: dict[int, str] = {}
        self._aside: list[tuple[Bound, list[Any]]] = []
        self._make_tables()
        self._report = NonFiniteReport()

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

    # -- setting up ----------------------------------------------------------------------------------------------

    def scope(self) -> AbstractContextManager[None]:
        """See ``Backend``."""
        return Scope(self.context)

    def is_model(self, obj: Any) -> bool:
        """See ``Backend``."""
        return isinstance(obj, gluon.Block)

    @in_numpy_semantics
    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """See ``Backend``."""
        for trainer in optimizers:
            checks.check_trainer(trainer)
        names = self._names | checks.parameter_names([*self._boundaries.models, *models])
        for model in models:
            checks.check_parameters(model.collect_params().values(), names, self.spec)
        for trainer in optimizers:
            checks.check_owner(trainer, names)
            checks.check_contexts(trainer)
            checks.check_kvstore(trainer)
            checks.check_compression(trainer, self.spec)
            if self.spec.master_weights:
                checks.check_alone(trainer)
                master_weights.check(trainer, self._before)
        self._names = names
        for model in models:
            self._take_model(model)
        for trainer in optimizers:
            self._bind(trainer)
        return list(models), list(optimizers)

    def _take_model(self, model: Any) -> None:
        checks.warn_of_fixed_graphs(model, self.spec)
        if self.spec.policy.param_dtype != "float32":
            self._halve(model)
        self._boundaries.add_model(model)
        self._tuned.note(model)
        self._make_tables()
        if self._compiler.active:
            self._compiler.hybridize(model)

    def _halve(self, model: Any) -> None:
        policy, blocks = self.spec.policy, dict(walk(model))
        dtypes = layer_dtypes(model, policy)
        self._before |= cast_parameters(model, dtypes, policy)
        self._boundaries.cast_at(model, policy.param_dtype)
        for path, dtype in dtypes.items():
            self._boundaries.cast_at(blocks[path], dtype, policy.param_dtype)

    def _bind(self, trainer: Any) -> None:
        if id(trainer) not in self._bound:
            own = master_weights.Masters(trainer, self._before) if self.spec.master_weights else None
            master_weights.make_states(trainer)
            rescales = self.spec.loss_scale.scale_bounds != (1, 1) or self.spec.accumulate_steps > 1
            self._bound[id(trainer)] = Bound(trainer, self._names, self._scaler, own, rescales)
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
        for bound in self._bound.values():
            bound.window.write_only()
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
            table = Table(policy, scaled=self._scaler.enabled, multicast=facts.multicasts(policy, self.context))
            table.optimize_layout = bool(self.spec.options.get("layout_optimization")) or self._tuned.layout
            self._boundaries.apply(table)
            self._tables[policy] = table
        return table

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """See ``Backend``."""
        return self._infer

    @in_numpy_semantics
    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> ScaledLosses:
        """See ``Backend``."""
        losses = read_losses(loss)
        factor = self._scaler.state.scale / self.spec.accumulate_steps
        named = [self._bound[id(trainer)] for trainer in optimizers]

        def run(losses: list[Any], heads: list[Any] | None) -> None:
            self._differentiate(losses, heads, named)

        windows = [bound.window for bound in named]
        check = functools.partial(check_backward, windows, "scale_loss")
        check_backward([window for window in windows if window.pending], "scale_loss")
        for window in windows:
            window.begin()
        return ScaledLosses(self._scaler, losses, factor, run, check, single=not isinstance(loss, (list, tuple)))

    @outside_regions
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
        self._aside = [(bound, bound.window.set_aside()) for bound in self._bound.values()]
        for bound, gradients in self._aside:
            bound.window.mark_as_old(gradients)
        try:
            arrays.backward(losses, heads)
        except errors.LossError:  # it wrote nothing
            named = []
            raise
        finally:
            self._take_back(named)

    def _take_back(self, named: list[Bound]) -> None:
        for bound, gradients in self._aside:
            bound.window.take_back(gradients if bound.window.backwards else [], add=bound in named)
        self._aside = []

    @outside_regions
    def unscale(self, optimizer: Any) -> None:
        """See ``Backend``."""
        self._bound[id(optimizer)].unscale()

    @outside_regions
    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """See ``Backend``."""
        return self._bound[id(optimizer)].clip_norm(max_norm)

    @outside_regions
    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """See ``Backend``."""
        self._bound[id(optimizer)].clip_value(clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """See ``Backend``."""
        return self._bound[id(optimizer)].gradients()

    @outside_regions
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
            scaler.count(found, id(bound))
        if update:
            scaler.update()
        return StepResult.of(reason == result.APPLIED, found, reason, scale, scaler.state.scale)

    def update(self) -> None:
        """See ``Backend``."""
        self._scaler.update()

    @outside_regions
    def drop_gradients(self, optimizer: Any) -> None:
        """See ``Backend``."""
        self._bound[id(optimizer)].window.empty()

    @outside_regions
    def rollback(self, optimizers: Sequence[Any]) -> bool:
        """See ``Backend``."""
        named = [self._bound[id(trainer)] for trainer in optimizers]
        self._take_back([])  # what an interrupted backward pass set aside: windows that are not named go on
        partly = [bound.rollback() for bound in named]
        return any(partly)

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

    # -- tools ---------------------------------------------------------------------------------------------------

    @in_numpy_semantics
    def to_native(self, array: Any, dtype: str | None = None) -> Any:
        """See ``Backend``."""
        return arrays.to_native(array, self.context, dtype)

    @in_numpy_semantics
    def to_numpy(self, tensor: Any) -> Any:
        """See ``Backend``."""
        return arrays.to_numpy(tensor)

    @classmethod
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        """See ``Backend``."""
        return wrap_custom(target, cast_inputs)
