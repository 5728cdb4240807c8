"""``amp.prepare``: models follow the policy, optimizers the loss scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unifiedamp.backend import SessionSpec

from .._types import Layer, Model, Named, Optimizer
from ..device.tuning import TensorFlowTuner
from ..distributed.distributed import TensorFlowDistributed
from ..distributed.strategies import check_distribution, replicas_of
from ..internals import is_built
from ..models.layout import biases_before_norm, channels_first
from ..precision import layers, recomputation
from ..precision.modes import Mode
from ..precision.saved_names import saved_parameters
from . import optimizers, prepare_checks, saved_state
from .fit import Fitting
from .fit_window import FitWindow
from .master_weights import MasterWeights
from .prepared_objects import PreparedObjects
from .prepared_optimizer import PreparedOptimizer
from .scaler import DeviceScaler
from .steps import Steps
from .trained_variables import TrainedVariables
from .weight_updates import WeightUpdates
from .wide_params import warn_float64


class Preparation:
    """Prepares the models and optimizers of one session, and undoes it.

    Args:
        spec: the session's.
        mode: how TensorFlow mixes precision.
        tuner: learns of the models' layers.
        distributed: learns where the models train.
        scaler: the session's loss scale; None without one.
        steps: ends the steps of prepared optimizers.
        fitting: follows the models' ``fit``.
        prepared: gets the objects.
    """

    def __init__(
        self, spec: SessionSpec, mode: Mode, tuner: TensorFlowTuner, distributed: TensorFlowDistributed,
        scaler: DeviceScaler | None, steps: Steps, fitting: Fitting, prepared: PreparedObjects,
    ) -> None:  # fmt: skip
        self._spec, self._mode, self._tuner, self._distributed = spec, mode, tuner, distributed
        self._scaler, self._steps, self._fitting, self._prepared = scaler, steps, fitting, prepared
        self._undo: list[Callable[[], None]] = []

    def prepare(
        self, models: Sequence[Model], given: Sequence[Optimizer]
    ) -> tuple[Sequence[Model], Sequence[Optimizer]]:
        """Check everything, then change the objects; see ``Training.prepare``."""
        released = [optimizers.released(optimizer) for optimizer in given]
        known = {id(optimizer): self._prepared.prepared_before(optimizer) for optimizer in released}
        given = [optimizer for optimizer in released if known[id(optimizer)] is None]
        prepare_checks.check_objects(models, given, self._spec)
        for before in filter(None, known.values()):
            prepare_checks.check_again(before.inner, before.params.named, models)
        self._mode.check_models(models)
        warn_float64(self._prepared.new_models(models), self._spec)
        globs = self._spec.tuning.checkpoint_layers
        recomputed = [recomputation.choose(model, globs) for model in models]
        assigned = prepare_checks.assign_parameters(models, given, self._prepared.owned())
        for optimizer, named in assigned:
            self._prepared.averaging.check(type(optimizer).__name__, list(named.values()))
        check_distribution("amp.prepare")
        again = [each.params.named for each in known.values() if each is not None]
        trained = [v for named in (*again, *(named for _, named in assigned)) for v in named.values()]
        replicas = replicas_of(trained, given, self._spec.reduce_dtype)
        replicas.check_alike(self._spec)
        self._distributed.place(replicas, bool(self._prepared.optimizers))
        self._attach(models, recomputed)
        bound = self._bind(assigned, models)
        self._undo += [self._fitting.attach(model, replicas) for model in self._prepared.add_models(models)]
        return list(models), [(known[id(optimizer)] or bound[id(optimizer)]).outer for optimizer in released]

    def _attach(self, models: Sequence[Model], recomputed: Sequence[dict[str, Layer]]) -> None:
        self._mode.attach(models)
        for model, chosen in zip(models, recomputed, strict=True):
            self._undo += [recomputation.attach(layer) for layer in chosen.values()]
            self._tuner.note(
                recomputed=list(chosen), biases=biases_before_norm(model), channels_first=channels_first(model)
            )

    def _bind(
        self, assigned: Sequence[tuple[Optimizer, Named]], models: Sequence[Model]
    ) -> dict[int, PreparedOptimizer]:
        """Return id of an optimizer → what it is prepared as."""
        known = layers.keras_variables(models)
        saved = {id(variable): name for name, variable in saved_parameters(models).items()}
        bound = {}
        for optimizer, named in assigned:
            applied = {name: known.get(id(variable), variable) for name, variable in named.items()}
            saved_as = {name: saved[id(variable)] for name, variable in named.items()}
            with self._distributed.replicas.scope():
                prepared = self._prepared_optimizer(optimizer, named, applied, saved_as)
            self._prepared.add_optimizer(prepared)
            bound[id(optimizer)] = prepared
        return bound

    def _prepared_optimizer(
        self, optimizer: Optimizer, named: Named, applied: Named, saved: Mapping[str, str]
    ) -> PreparedOptimizer:
        """Build the optimizer's variables, before any ``tf.cond`` is traced, and return it prepared."""
        spec = self._spec
        masters = MasterWeights(optimizer, applied, self._distributed.replicas) if spec.master_weights else None
        updates = (
            WeightUpdates(optimizer, named, applied, saved, spec.policy)
            if spec.policy.update or spec.policy.state_dtype
            else None
        )
        if not is_built(optimizer):
            optimizer.build(list(applied.values()))
        outer = self._outer(optimizer, applied)
        params = TrainedVariables(
            optimizer, named, spec.accumulate_steps, masters, self._prepared.trainability, updates, applied
        )
        window = None if params.accumulators is None else FitWindow(params.accumulators, spec.accumulate_steps)
        prepared = PreparedOptimizer(outer, params, self._scaler, self._distributed.replicas, window)
        if outer is not optimizer:
            optimizers.end_steps_by(outer, prepared, self._steps)
            in_fit = window if prepared.replicas.count == 1 else None
            saved_state.attach(outer, optimizers.scaler_of(outer), in_fit, updates)
            if updates is not None:
                self._undo.append(updates.refuse_native())
        return prepared

    def _outer(self, optimizer: Optimizer, applied: Named) -> Optimizer:
        """Return what users hold: the optimizer itself where a step does nothing else than its own."""
        spec, scaler = self._spec, self._scaler
        own = spec.master_weights or spec.policy.update or spec.policy.state_dtype or spec.reduce_dtype
        counted = spec.schedule is not None  # iterations of Keras's own loops too
        plain = scaler is None and spec.accumulate_steps == 1 and not (own or counted)
        if plain and not _keras_would_scale(spec):
            return optimizer
        kind = optimizers.prepared_class(type(optimizer).__name__)
        outer: Optimizer = kind(optimizer, scaler or DeviceScaler(spec.loss_scale, True), spec.accumulate_steps)
        outer.build(list(applied.values()))
        return outer

    def close(self) -> None:
        """Undo what was changed in models, and release the optimizers."""
        with self._distributed.replicas.scope():  # moments become other variables, on each replica
            while self._undo:
                self._undo.pop()()
        for prepared in self._prepared.optimizers:
            if prepared.outer is not prepared.inner:
                optimizers.release(prepared.outer)
        self._prepared.release()
        self._fitting.stop()


def _keras_would_scale(spec: SessionSpec) -> bool:
    """Whether ``model.compile`` would wrap a plain optimizer in Keras's own dynamic loss scale."""
    mixed = any((each.param_dtype, each.compute_dtype) == ("float32", "float16") for each in spec.policies)
    return mixed and spec.options.get("mode", "keras") == "keras"
