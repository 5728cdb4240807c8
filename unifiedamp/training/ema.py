"""``amp.ema``: exponential moving averages of models' weights, which move with applied steps alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from ..backend import Backend, WeightAverage
from ..errors import CheckpointError, ConfigError, StateWarning, StepOrderError, WrongObjectError, first_names, nearest
from .closed_session import refuse
from .interruption import Interruptions


@dataclass(frozen=True)
class SavedAverage:
    """One average of a saved state.

    Attributes:
        decay, warmup: what it was kept with.
        updates: applied steps that moved it, by optimizer.
        weights: name → float32 array.
    """

    decay: float
    warmup: bool
    updates: list[int]
    weights: dict[str, Any]


class Ema:
    """An exponential moving average of a model's trained weights, see ``Amp.ema``.

    ``average = d * average + (1 - d) * weight`` at each applied step of an optimizer that trains them, beginning with
    the weights before the next applied step.

    Args:
        model: whose weights.
        decay: d of the formula.
        warmup: d is ``min(decay, (1 + n) / (10 + n))`` at the n-th applied step.
        average: the backend's.
        averages: the session's.

    Attributes:
        model, decay, warmup: see the arguments.
    """

    def __init__(self, model: Any, decay: float, warmup: bool, average: WeightAverage, averages: Averages) -> None:
        self.model, self.decay, self.warmup = model, decay, warmup
        self._average, self._averages = average, averages

    def __repr__(self) -> str:
        return f"Ema({type(self.model).__name__}, decay={self.decay}, warmup={self.warmup})"

    def __deepcopy__(self, _memo: object) -> Ema:
        """Return the average itself: a copy would never move."""
        return self

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            WrongObjectError: always.
        """
        raise WrongObjectError(
            "amp.ema: an average cannot be pickled or sent to another process, because its session moves it. "
            "amp.state_dict() holds it for another session, and ema.weights() returns it as numpy arrays"
        )

    @property
    def updates(self) -> int:
        """Applied steps that have moved the average; of several optimizers that train the model, the most."""
        return max(self._average.updates())

    def weights(self) -> dict[str, Any]:
        """Return name → float32 (or complex64) numpy array: what ``amp.master_weights(model)`` would return if the
        model had the averages. What is not averaged (frozen weights, statistics of normalization) is the model's own.
        """
        return self._averages.all_weights(self.model) | self._average.read()

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Set the average by the names of :meth:`weights`; names that are not averaged are left alone.

        Raises:
            CheckpointError: a name or shape does not fit, or is missing; nothing is changed.
            StepOrderError: the averages are swapped in, or the session is closed.
        """
        self._averages.check_idle("load_weights")
        fitting = fitting_weights(weights, self._average.read(), self._averages.all_weights(self.model))
        self._average.write(fitting, self._average.updates())

    @contextmanager
    def swapped(self) -> Iterator[Any]:
        """Return a context in which the model has the averages as its weights; yields the model.

        On exit the weights, and master weights, are restored bit for bit, also after an exception. Inside, every call
        of a step raises ``StepOrderError``, as does :meth:`swapped` of an average of the same model.
        """
        self._averages.check_swappable(self)
        try:
            self._averages.swap_in(self)
            self._average.swap_in()
            yield self.model
        finally:
            self._averages.swap_out(self)

    def state(self) -> SavedAverage:
        """Return what a checkpoint holds."""
        return SavedAverage(self.decay, self.warmup, self._average.updates(), self._average.read())

    def check(self, saved: SavedAverage) -> None:
        """Refuse a saved average that does not fit.

        Raises:
            CheckpointError: of names, shapes, or optimizers.
        """
        fitting_weights(saved.weights, self._average.read(), {})
        mine = len(self._average.updates())
        if len(saved.updates) != mine:
            raise CheckpointError(
                f"this state's average was moved by {len(saved.updates)} optimizers, and {mine} train the model here; "
                "prepare the same optimizers, or load it by ema.load_weights"
            )

    def load(self, saved: SavedAverage) -> None:
        """Go on from a saved average that :meth:`check` accepted."""
        self._average.write(saved.weights, saved.updates)

    def restart(self) -> None:
        """Start anew from the model's weights."""
        self._average.restart()

    def restore(self) -> None:
        """Restore the model's weights. Idempotent."""
        self._average.swap_out()

    def stop(self) -> None:
        """Stop moving."""
        self._average.stop()


class Averages:
    """The averages of one session, in the order in which they were made.

    Args:
        backend: the session's.
        interruptions: refuses steps while averages are swapped in.
    """

    def __init__(self, backend: Backend, interruptions: Interruptions) -> None:
        self._backend, self._interruptions = backend, interruptions
        self._all: list[Ema] = []
        self._swapped: list[Ema] = []
        self._leaving: list[Ema] = []
        self._later: list[SavedAverage] = []
        self._later_since = 0
        self._closed = False

    def create(self, model: Any, decay: float, warmup: bool) -> Ema:
        """See ``Amp.ema``."""
        self._backend.require("ema", "amp.ema")
        if not self._backend.training.is_model(model):
            raise WrongObjectError(
                f"amp.ema: expected a model of backend {self._backend.name!r}, got {type(model).__name__}"
            )
        self.check_idle("ema")
        chosen = checked_decay(decay)
        ema = Ema(model, chosen, bool(warmup), self._backend.averaging.start(model, chosen, bool(warmup)), self)
        self._take_later(ema)
        self._all.append(ema)
        return ema

    def all_weights(self, model: Any) -> dict[str, Any]:
        """Return the model's own weights by name; none where the backend reads none."""
        return self._backend.weights.read(model) if self._backend.weights else {}

    # -- evaluation ----------------------------------------------------------------------------------------------

    def check_swappable(self, ema: Ema) -> None:
        """Refuse to swap in what cannot be.

        Raises:
            StepOrderError: averages of this model are swapped in already, or the session is closed.
        """
        if self._closed:
            refuse("ema: swapped")
        if self._leaving:
            self._finish()
        if any(each.model is ema.model for each in self._swapped):
            raise StepOrderError(
                f"ema.swapped: averages of this {type(ema.model).__name__} are swapped in already; leave that "
                "'with ema.swapped():' first"
            )

    def swap_in(self, ema: Ema) -> None:
        """Refuse steps from here on."""
        self._swapped.append(ema)
        self._interruptions.hold(self._refuse)

    def swap_out(self, ema: Ema) -> None:
        """Restore the model's weights, and allow steps once no averages are swapped in. Idempotent."""
        self._leaving.append(ema)
        self._finish()

    def _finish(self) -> None:
        """Finish what :meth:`swap_out` began; a signal may have interrupted it."""
        for ema in self._leaving:
            ema.restore()
        self._swapped = [each for each in self._swapped if not any(each is one for one in self._leaving)]
        self._leaving = []
        if not self._swapped:
            self._interruptions.hold(None)

    def _refuse(self) -> None:
        self._finish()
        if self._swapped:
            raise _is_swapped("a step")

    def check_idle(self, call: str) -> None:
        """Refuse a call that would change weights while averages are swapped in.

        Raises:
            StepOrderError: they are, or the session is closed.
        """
        if self._closed:
            refuse(call)
        if self._leaving:
            self._finish()
        if self._swapped:
            raise _is_swapped(f"amp.{call}")

    # -- saving --------------------------------------------------------------------------------------------------

    def state(self) -> list[SavedAverage]:
        """Return what a checkpoint holds."""
        return [ema.state() for ema in self._all]

    def check(self, saved: Sequence[SavedAverage]) -> None:
        """Refuse saved averages that do not fit those of the session; see :meth:`Ema.check`."""
        for ema, state in zip(self._all, saved, strict=False):
            ema.check(state)

    def load(self, saved: Sequence[SavedAverage]) -> None:
        """Go on from saved averages; what there are more of is for later calls of ``amp.ema``."""
        warn = self._backend.spec.warn
        for ema, state in zip(self._all, saved, strict=False):
            _compare(ema, state, warn)
            ema.load(state)
        for number, ema in enumerate(self._all[len(saved) :], len(saved)):
            warn(
                f"the state holds {len(saved)} averages and this session has {len(self._all)}: number {number + 1} "
                "starts anew from the model's weights at the next step",
                StateWarning,
            )
            ema.restart()
        self._later = list(saved[len(self._all) :])
        self._later_since = self._applied_steps()

    def _take_later(self, ema: Ema) -> None:
        if not self._later:
            return
        if self._applied_steps() != self._later_since:
            self._later = []
            self._backend.spec.warn(
                "the loaded state holds an average for this amp.ema, and steps were applied since, which did not move "
                "it: it starts anew from the model's weights; call amp.ema before training goes on",
                StateWarning,
            )
            return
        ema.check(self._later[0])
        saved = self._later.pop(0)
        _compare(ema, saved, self._backend.spec.warn)
        ema.load(saved)

    def _applied_steps(self) -> int:
        return self._backend.training.read_state().applied_steps

    def close(self) -> None:
        """Restore weights that are swapped out, and stop moving averages; they can still be read."""
        self._leaving += self._swapped
        self._finish()
        for ema in self._all:
            ema.stop()
        self._closed = True


def _is_swapped(call: str) -> StepOrderError:
    return StepOrderError(
        f"{call} was called while the averages of amp.ema are swapped in, and would change them instead of the model's "
        "weights; leave 'with ema.swapped():' first"
    )


def _compare(ema: Ema, saved: SavedAverage, warn: Callable[..., None]) -> None:
    for name in ("decay", "warmup"):
        old, new = getattr(saved, name), getattr(ema, name)
        if old != new:
            warn(f"the average's {name} was {old!r} when saved; this session's {new!r} is used", StateWarning)


def checked_decay(decay: object) -> float:
    """Return a decay.

    Raises:
        ConfigError: it is no number of at least 0 and below 1.
    """
    number = isinstance(decay, (int, float)) and not isinstance(decay, bool)
    if not number or not 0.0 <= float(decay) < 1.0:  # type: ignore[arg-type]  # a number, as was just checked
        raise ConfigError(
            f"amp.ema: decay must be at least 0 and below 1, such as 0.999, got {decay!r}: it is the part of the "
            "average that each step keeps"
        )
    return float(decay)  # type: ignore[arg-type]  # see above


def fitting_weights(given: Mapping[str, Any], wanted: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of ``given`` for the names and shapes of ``wanted``.

    Args:
        given: name → array.
        wanted: name → array of the shape and dtype that is needed.
        known: other names that may be there.

    Raises:
        CheckpointError: something does not fit.
    """
    import numpy as np

    unknown = [name for name in given if name not in wanted and name not in known]
    missing = [name for name in wanted if name not in given]
    if unknown or missing:
        what = f"no weights {unknown[0]!r}{nearest(str(unknown[0]), wanted)}" if unknown else first_names(missing)
        said = "the model's average has" if unknown else f"{len(missing)} averaged weights of the model are missing:"
        raise CheckpointError(f"amp.ema: {said} {what}; nothing was loaded")
    found = {}
    for name, like in wanted.items():
        array = np.asarray(given[name])
        if array.shape != like.shape or array.dtype.kind not in ("fiuc" if like.dtype.kind == "c" else "fiu"):
            raise CheckpointError(
                f"amp.ema: {name!r} has shape {array.shape} and dtype {array.dtype}, the average wants numbers of "
                f"shape {like.shape}; nothing was loaded"
            )
        found[name] = array.astype(like.dtype)
    return found
