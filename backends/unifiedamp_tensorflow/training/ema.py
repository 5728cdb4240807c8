"""``amp.ema``: averages of a model's variables, in variables beside them, moved where an optimizer applies a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import tensorflow as tf

from unifiedamp.backend import Averaging, WeightAverage, ema_weight, errors
from unifiedamp.backend.ema import WARMUP_OFFSET

from .. import patches
from .._types import Model, Tensor, Variable
from ..device.arrays import read_variable, wide_dtype
from ..distributed.replicas import Replicas, first_copy, replica_counter
from ..internals import under_xla
from ..precision.layers import own_weights
from ..precision.saved_names import saved_parameters
from ..precision.tapes import in_dataset_loop
from .prepared_optimizer import PreparedOptimizer
from .scaler import branch
from .trained_variables import TrainedVariables

NOT_BEGUN = -1
"""The count of averages that begin with the weights before the next applied step."""

SWAPPED_IN = (
    "a step was called while the averages of amp.ema are swapped in, and would change them instead of the model's "
    "weights; leave 'with ema.swapped():' first"
)


class Pair:
    """A variable that an optimizer trains (the master of one, where it has one), and its float32 average.

    Args:
        name: of the model's variable, see ``Weights``.
        params: what the optimizer trains.
        key: the variable's name there.
    """

    def __init__(self, name: str, params: TrainedVariables, key: str) -> None:
        self.name, self._params, self._key = name, params, key
        self.trained = trained = params.trained[key]
        self.ended = False
        self.average = tf.Variable(
            tf.zeros(trained.shape, wide_dtype(trained)), trainable=False, name="unifiedamp/average",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )  # fmt: skip

    def true(self, trained: Variable) -> Tensor:
        """Return the true weights, in the average's dtype, of what is trained or of one replica's copy of it."""
        return tf.cast(self._params.true(self._key, trained), self.average.dtype)

    def held(self) -> list[Variable]:
        """Return the variables that hold the true weights."""
        updates, param = self._params.updates, self._params.named[self._key]
        rests = [] if updates is None else [updates.rests[self._key]] if self._key in updates.rests else []
        return [param, *([] if self.trained is param else [self.trained]), *rests]

    def swap_in(self) -> None:
        """Set the true weights to the average."""
        self._params.set_true(self._key, self.average.read_value())


class Share:
    """One optimizer's share of one model's average.

    Args:
        prepared: the optimizer.
        pairs: what it trains of the model.
        decay, warmup: see ``ema_weight``.
        swapped: int64 variable: 1 while averages are swapped in.

    Attributes:
        swapped_in: the same, for eager steps.
    """

    def __init__(
        self, prepared: PreparedOptimizer, pairs: Sequence[Pair], decay: float, warmup: bool, swapped: Variable
    ) -> None:
        self.pairs, self._replicas = pairs, prepared.replicas
        self._decay, self._warmup, self._swapped = decay, warmup, swapped
        self.swapped_in = False
        self._count = replica_counter("averaged_steps", NOT_BEGUN)
        self._begun = False

    def check(self) -> None:
        """Refuse a step while averages are swapped in.

        Raises:
            StepOrderError: they are.
        """
        if self.swapped_in:
            raise errors.StepOrderError(SWAPPED_IN)

    def guard(self) -> AbstractContextManager[Any]:
        """Refuse the update inside while averages are swapped in; in a trace by an operation, which XLA cannot have."""
        self.check()
        if in_dataset_loop():
            raise errors.UnsupportedError(
                "amp.ema: a loop over a tf.data.Dataset inside a compiled step does not wait for what a step does to "
                "averages; loop over the dataset outside of the step"
            )
        if tf.executing_eagerly() or under_xla(tf.compat.v1.get_default_graph()):
            return nullcontext()
        free = tf.equal(first_copy(self._swapped).read_value(), 0)
        return tf.control_dependencies([tf.debugging.Assert(free, [SWAPPED_IN])])

    def begin(self) -> None:
        """Before an applied step: averages that have not begun begin with the weights."""
        if not tf.executing_eagerly():
            begun = tf.greater(first_copy(self._count).read_value(), NOT_BEGUN)
            tf.cond(begun, branch(lambda: None), branch(self._start))
        elif not self._begun:
            if not self.begun():
                self._start()
            self._begun = True

    def _start(self) -> None:
        for pair in self.pairs:
            _update(self._replicas, pair.average, _set, pair.true, pair.trained)

    def end(self) -> None:
        """After an applied step: move the averages."""
        self._count.assign(tf.maximum(first_copy(self._count).read_value(), 0) + 1)
        weight = self._weight()
        for pair in self.pairs:
            _update(self._replicas, pair.average, _move, pair.true, pair.trained, weight)

    def _weight(self) -> Tensor:
        constant = tf.constant(ema_weight(self._decay, False, 0), tf.float32)
        if not self._warmup:
            return constant
        n = tf.cast(first_copy(self._count).read_value(), tf.float32)
        return tf.maximum((WARMUP_OFFSET - 1.0) / (WARMUP_OFFSET + n), constant)

    def updates(self) -> int:
        """Return how many steps moved the averages; may wait for the device."""
        return max(int(self._count.value()), 0)

    def begun(self) -> bool:
        """Return whether there are averages: a step moved them, or they were set; may wait for the device."""
        return int(self._count.value()) > NOT_BEGUN

    def set_updates(self, count: int) -> None:
        """Set what :meth:`updates` returns, or ``NOT_BEGUN``."""
        self._count.assign(count)
        self._begun = count > NOT_BEGUN

    def catch_up(self) -> None:
        """Set averages that have not begun to the weights."""
        if not self.begun():
            for pair in self.pairs:
                pair.average.assign(pair.true(pair.trained))


TrueOf: TypeAlias = "Callable[[Variable], Tensor]"


def _update(
    replicas: Replicas, variable: Variable, change: Callable[..., Any], true_of: TrueOf, *args: Any
) -> None:  # fmt: skip
    """Change a variable on each replica, by its own values of ``args``."""
    replicas.update(variable, functools.partial(change, true_of), args)


def _set(true_of: TrueOf, average: Variable, trained: Variable) -> Any:
    return average.assign(true_of(trained), read_value=False)


def _move(true_of: TrueOf, average: Variable, trained: Variable, weight: Tensor) -> Any:
    """Run ``average -= weight * (average - trained)``."""
    difference = average.read_value() - true_of(trained)
    return tf.raw_ops.ResourceApplyGradientDescent(
        var=average.handle, alpha=tf.cast(weight, average.dtype), delta=difference
    )


class ModelAverage(WeightAverage):
    """The average of one model.

    Args:
        model: whose.
        decay, warmup: see ``ema_weight``.
        stopped: called with this average when it stops.
    """

    def __init__(self, model: Model, decay: float, warmup: bool, stopped: Callable[[ModelAverage], None]) -> None:
        self._model, self._decay, self._warmup, self._stopped = model, decay, warmup, stopped
        self._swapped: Variable | None = None
        self.shares: list[Share] = []
        self._kept: list[tuple[Variable, Tensor]] = []
        self._undo: list[Callable[[], None]] = []

    def join(self, prepared: PreparedOptimizer) -> None:
        """Follow an optimizer, if it trains the model."""
        named = saved_parameters([self._model], own_weights)
        names = {id(variable): name for name, variable in named.items()}
        params = prepared.params
        trained = [name for name, variable in params.named.items() if id(variable) in names]
        if not trained:
            return
        if getattr(prepared.inner, "gradient_accumulation_steps", None):
            raise errors.UnsupportedError(
                f"amp.ema: this {type(prepared.inner).__name__} has gradient_accumulation_steps, so that not each of "
                "its steps updates weights; give Amp(accumulate_steps=...) instead"
            )
        self.check([params.named[name] for name in trained], type(prepared.inner).__name__)
        with prepared.replicas.scope(), tf.init_scope():
            self._swapped = replica_counter("swapped_in") if self._swapped is None else self._swapped
            pairs = [Pair(names[id(params.named[name])], params, name) for name in trained]
            share = Share(prepared, pairs, self._decay, self._warmup, self._swapped)
        self.shares.append(share)
        self._undo.append(prepared.follow(share))

    def check(self, trained: Iterable[Variable], optimizer: str) -> None:
        """Refuse another optimizer of variables whose averages follow one already.

        Raises:
            PrepareError: naming the variables.
        """
        followed = {id(each) for pair in self._pairs() for each in pair.held()}
        shared = [variable.name for variable in trained if id(variable) in followed]
        if shared:
            raise errors.PrepareError(
                f"amp.ema: the average of model {self._model.name!r} follows one optimizer per variable, and this "
                f"{optimizer} trains {errors.first_names(shared)} too: to replace an optimizer, save the average "
                "(ema.weights()), close the session, and go on with ema.load_weights in another one"
            )

    # -- reading and writing -------------------------------------------------------------------------------------

    def updates(self) -> list[int]:
        return [share.updates() for share in self.shares]

    def read(self) -> dict[str, Any]:
        found = {}
        for share in self.shares:
            begun = share.begun()
            for pair in share.pairs:
                value = pair.average if begun or pair.ended or self._kept else pair.true(pair.trained)
                found[pair.name] = read_variable(value, pair.average.dtype)
        return found

    def write(self, weights: Mapping[str, Any], updates: Sequence[int]) -> None:
        for share, count in zip(self.shares, updates, strict=True):
            for pair in share.pairs:
                pair.average.assign(weights[pair.name])
            share.set_updates(count)

    def restart(self) -> None:
        for share in self.shares:
            share.set_updates(NOT_BEGUN)

    # -- evaluation ----------------------------------------------------------------------------------------------

    def swap_in(self) -> None:
        if not tf.executing_eagerly():
            raise errors.StepOrderError("ema.swapped: enter it outside of functions that TensorFlow traces")
        for share in self.shares:
            share.catch_up()
        pairs = list(self._pairs())
        variables = [variable for pair in pairs for variable in pair.held()]
        self._kept = [(variable, tf.identity(variable)) for variable in variables]
        self._set_swapped(1)
        for pair in pairs:
            pair.swap_in()

    def swap_out(self) -> None:
        for variable, value in self._kept:
            variable.assign(value)
        self._set_swapped(0)
        self._kept = []

    def _set_swapped(self, value: int) -> None:
        for share in self.shares:
            share.swapped_in = bool(value)
        if self._swapped is not None:
            self._swapped.assign(value)

    def _pairs(self) -> Iterator[Pair]:
        for share in self.shares:
            yield from share.pairs

    def stop(self) -> None:
        for share in self.shares:
            share.catch_up()
        self._kept_from_here()
        while self._undo:
            self._undo.pop()()
        self._stopped(self)

    def _kept_from_here(self) -> None:
        """Read averages, and not weights, from here on, also where they have not begun."""
        for share in self.shares:
            for pair in share.pairs:
                pair.ended = True


class TensorFlowAveraging(Averaging):
    """Averages in variables; they move in the branch of a trace that applies, and in Keras's own loops.

    Args:
        optimizers: the session's prepared optimizers; the list grows.
        models: the session's prepared models; the list grows.
    """

    means = "variables that move in the branch that applies a step, in fit too"

    def __init__(self, optimizers: Sequence[PreparedOptimizer], models: Sequence[Model]) -> None:
        self._optimizers, self._models = optimizers, models
        self._all: list[ModelAverage] = []

    def start(self, model: Model, decay: float, warmup: bool) -> WeightAverage:
        average = ModelAverage(model, decay, warmup, self._remove)
        for prepared in self._optimizers:
            average.join(prepared)
        if not average.shares:
            raise errors.PrepareError(
                f"amp.ema: no optimizer that amp.prepare was given trains a variable of model {model.name!r}; prepare "
                "the model with its optimizer first"
            )
        self._all.append(average)
        self._trace_anew()
        return average

    def join(self, prepared: PreparedOptimizer) -> None:
        """Follow an optimizer that was prepared later."""
        for average in self._all:
            average.join(prepared)

    def check(self, optimizer: str, trained: Sequence[Variable]) -> None:
        """Refuse an optimizer of variables whose averages follow another one; see :meth:`ModelAverage.check`."""
        for average in self._all:
            average.check(trained, optimizer)

    def _remove(self, average: ModelAverage) -> None:
        self._all = [each for each in self._all if each is not average]
        self._trace_anew()

    def _trace_anew(self) -> None:
        """Make ``fit`` trace its step anew; ``amp.compile`` sees what optimizers are followed by."""
        for model in self._models:
            patches.forget_train_function(model)
