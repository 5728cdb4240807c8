"""``amp.ema``: averages of Gluon's parameters, an array on each context, moved after each applied update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from unifiedamp.backend import Averaging, WeightAverage, ema_weight, errors

from .._types import Array, Block, HostArray, Parameter
from ..device.arrays import to_numpy
from ..device.numpy_semantics import in_numpy_semantics
from ..layer_paths import named_parameters
from ..mxnet_api import NumpyArray, call, cast, context_of, dtype_name, from_numpy, param_dtype
from ..precision.autocast import outside_regions
from ..precision.low_precision_params import Arrays
from .prepared_optimizer import PreparedOptimizer
from .prepared_optimizers import PreparedOptimizers
from .rounded_weights import RoundedWeights

AT_ONCE = 32
"""Arrays that one operator moves."""

FLOATING = ("float32", "float16", "bfloat16", "float64")


class Pair:
    """A parameter's averages, one for each context, and the arrays that they follow: its masters, or its own.

    Args:
        name: of the parameter.
        param: the parameter.
        arrays_of: returns the arrays.
        prepared: the Trainer.
        index: the parameter's place in it.

    Attributes:
        averages: float32, plain NDArrays; none before the parameter has a value.
        arrays: returns what they follow.
    """

    def __init__(
        self, name: str, param: Parameter, arrays_of: Callable[[], Arrays], prepared: PreparedOptimizer, index: int
    ) -> None:
        self.name, self.param, self.arrays = name, param, arrays_of
        self._rounded = prepared.masters if isinstance(prepared.masters, RoundedWeights) else None
        self._index = index
        self.averages: Arrays = []

    def followed(self) -> Arrays:
        """Return the arrays, plain and dense, in the dtype that they have."""
        return [_dense(array) for array in self.arrays()]

    def refresh(self, start: bool) -> None:
        """Set averages to the parameter's values, where they are missing or ``start`` asks for it."""
        arrays = self.arrays()
        moved = len(self.averages) != len(arrays)
        if start or moved:
            values = self.averages[:1] if self.averages and not start else []
            self.averages = [_on(values[0], array) if values else _wide(_dense(array)).copy() for array in arrays]

    def rest(self) -> HostArray | None:
        """Return what rounding left out of the parameter; None for nothing."""
        return None if self._rounded is None else self._rounded.rest(self._index)

    def set_rest(self, rest: HostArray | None) -> None:
        """Set what :meth:`rest` returns, of the value that the parameter has now."""
        if self._rounded is not None:
            self._rounded.put(self._index, rest)

    def split_average(self) -> None:
        """Set a parameter that is rounded to the average, and what is left out to that of the average."""
        if self._rounded is not None and self._rounded.rounds(self._index):
            self._rounded.split(self._index, to_numpy(self.averages[0]))


def _on(values: Array, like: Array) -> Array:
    return values.copyto(context_of(like))


def _dense(array: Array) -> Array:
    plain = array.as_nd_ndarray()
    return plain if plain.stype == "default" else plain.tostype("default")


def _wide(array: Array) -> Array:
    return array if dtype_name(array) == "float32" else cast(array, "float32")


class Share:
    """One Trainer's share of one model's average.

    Args:
        prepared: the Trainer.
        pairs: what it trains of the model.
        decay, warmup: see ``ema_weight``.

    Attributes:
        updates: applied steps that moved the averages.
        begun: a step moved them, or they were set; else they begin with the weights before the next applied step.
        swapped_in: steps are refused.
    """

    def __init__(self, prepared: PreparedOptimizer, pairs: Sequence[Pair], decay: float, warmup: bool) -> None:
        self.prepared, self.pairs = prepared, pairs
        self._decay, self._warmup = decay, warmup
        self.updates, self.begun = 0, False
        self.swapped_in = False

    def check(self) -> None:
        """Refuse a step while averages are swapped in.

        Raises:
            StepOrderError: they are.
        """
        if self.swapped_in:
            raise errors.StepOrderError(
                "a step was called while the averages of amp.ema are swapped in, and would change them instead of the "
                "model's weights; leave 'with ema.swapped():' first"
            )

    def begin(self) -> None:
        """Before an applied step: averages that have not begun begin with the weights."""
        self.catch_up()

    def end(self) -> None:
        """After an applied step: move the averages."""
        weight = ema_weight(self._decay, self._warmup, self.updates + 1)
        contexts: dict[object, list[tuple[Array, Array]]] = {}
        for pair in self.pairs:
            for average, array in zip(pair.averages, pair.followed(), strict=True):
                contexts.setdefault(context_of(average), []).append((average, _wide(array)))
        for moves in contexts.values():
            for start in range(0, len(moves), AT_ONCE):
                _move(moves[start : start + AT_ONCE], weight)
        self.updates += 1
        self.begun = True

    def catch_up(self) -> None:
        """Set averages that have not begun to the weights."""
        for pair in self.pairs:
            pair.refresh(start=not self.begun)


def _move(moves: Sequence[tuple[Array, Array]], weight: float) -> None:
    """Run ``average -= weight * (average - array)``: a step of SGD with the gradient ``-array`` and weight decay 1."""
    count = len(moves)
    call(
        "multi_sgd_update",
        [array for move in moves for array in move],
        out=[average for average, _ in moves],
        lrs=(weight,) * count,
        wds=(1.0,) * count,
        rescale_grad=-1.0,
        num_weights=count,
    )


class ModelAverage(WeightAverage):
    """The average of one block.

    Args:
        model: whose.
        optimizers: the session's Trainers.
        decay, warmup: see ``ema_weight``.
    """

    def __init__(self, model: Block, optimizers: PreparedOptimizers, decay: float, warmup: bool) -> None:
        self._model, self._decay, self._warmup = model, decay, warmup
        self.shares: list[Share] = []
        self._kept: list[tuple[Array, Array]] = []
        self._rests: list[tuple[Pair, HostArray | None]] = []
        for prepared in optimizers:
            self.join(prepared)

    def join(self, prepared: PreparedOptimizer) -> None:
        """Follow a Trainer, if it trains the block."""
        names = {id(param): name for name, param in named_parameters(self._model)}
        pairs = [
            Pair(names[id(param)], param, _arrays_of(prepared, index, param), prepared, index)
            for index, param in enumerate(prepared.trainer._params)
            if id(param) in names and param._differentiable and param_dtype(param.dtype) in FLOATING
        ]
        if pairs:
            share = Share(prepared, pairs, self._decay, self._warmup)
            self.shares.append(share)
            prepared.followers.append(share)

    def _pairs(self) -> Iterator[Pair]:
        for share in self.shares:
            yield from share.pairs

    # -- reading and writing -------------------------------------------------------------------------------------

    def updates(self) -> list[int]:
        return [share.updates for share in self.shares]

    @in_numpy_semantics
    def read(self) -> dict[str, HostArray]:
        self._catch_up()
        return {pair.name: to_numpy(pair.averages[0]) for pair in self._pairs() if pair.averages}

    def _catch_up(self) -> None:
        for share in self.shares:
            if not self._kept and share in share.prepared.followers:
                share.catch_up()

    @in_numpy_semantics
    def write(self, weights: Mapping[str, HostArray], updates: Sequence[int]) -> None:
        self._catch_up()
        for pair in self._pairs():
            for average in pair.averages:
                average[:] = from_numpy(weights[pair.name], context_of(average)).as_nd_ndarray()
        for share, count in zip(self.shares, updates, strict=True):
            share.updates, share.begun = count, True

    def restart(self) -> None:
        for share in self.shares:
            share.updates, share.begun = 0, False

    # -- evaluation ----------------------------------------------------------------------------------------------

    @outside_regions
    def swap_in(self) -> None:
        self._catch_up()
        changes = [change for pair in self._pairs() for change in _changes(pair)]
        self._kept = [(array, array.copy()) for array, _ in changes]
        self._rests = [(pair, pair.rest()) for pair in self._pairs()]
        for share in self.shares:
            share.swapped_in = True
        for array, average in changes:
            _assign(array, average)
        for pair, _ in self._rests:
            pair.split_average()

    @outside_regions
    def swap_out(self) -> None:
        for array, values in self._kept:
            array[:] = values
        for pair, rest in self._rests:
            pair.set_rest(rest)
        for share in self.shares:
            share.swapped_in = False
        self._kept, self._rests = [], []

    def stop(self) -> None:
        self._catch_up()
        for share in self.shares:
            share.prepared.followers.remove(share)


def _arrays_of(prepared: PreparedOptimizer, index: int, param: Parameter) -> Callable[[], Arrays]:
    """Return what returns a parameter's masters, or its own arrays, one for each context."""

    def arrays() -> Arrays:
        masters = None if prepared.masters is None else prepared.masters.at(index)
        return list(param._data or ()) if masters is None else masters

    return arrays


def _changes(pair: Pair) -> Iterator[tuple[Array, Array]]:
    """Yield each array of a parameter, and of its masters, with the average that it gets."""
    own = list(pair.param._data or ())
    for arrays in (own, pair.arrays()):
        if arrays is own or not any(arrays[0] is each for each in own):
            yield from zip(arrays, pair.averages, strict=True)


def _assign(array: Array, average: Array) -> None:
    values = cast(average, dtype_name(array))
    array[:] = values.as_np_ndarray() if isinstance(array, NumpyArray) else values


class MXNetAveraging(Averaging):
    """Averages on each context, moved by operators over many arrays at once.

    Args:
        optimizers: the session's Trainers.
    """

    means = "arrays on each context, moved after each applied update"

    def __init__(self, optimizers: PreparedOptimizers) -> None:
        self._optimizers = optimizers
        self._all: list[ModelAverage] = []
        optimizers.on_new(self._join)

    @in_numpy_semantics
    def start(self, model: Block, decay: float, warmup: bool) -> WeightAverage:
        average = ModelAverage(model, self._optimizers, decay, warmup)
        if not average.shares:
            raise errors.PrepareError(
                f"amp.ema: no Trainer that amp.prepare was given trains a parameter of this {type(model).__name__}; "
                "prepare the model with its Trainer first"
            )
        self._all.append(average)
        return average

    def _join(self, prepared: PreparedOptimizer) -> None:
        for average in self._all:
            average.join(prepared)
