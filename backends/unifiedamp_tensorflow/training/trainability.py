"""Which parameters train now: layers may be frozen and unfrozen between steps, by ``layer.trainable``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from unifiedamp.backend import errors

from .._types import Layer, Model, Named, Sequential, Variable
from ..internals import descendants, native, tracked


class Trainability:
    """Follows the ``trainable`` flags of prepared models, and which layers they have.

    The flags are few and cheap to read; what follows from them is recomputed only when one has changed.

    Args:
        owned: returns the ids of the variables that the prepared optimizers hold.
    """

    def __init__(self, owned: Callable[[], Iterable[int]]) -> None:
        self._owned = owned
        self._models: list[Model] = []
        self._flagged: list[Layer | Variable] = []
        self._sequences: list[Sequential] = []
        self._tree: list[Layer] = []
        self._before: list[Variable] = []
        self._key: tuple[int, ...] | None = None
        self._ids: frozenset[int] = frozenset()

    def follow(self, models: Sequence[Model]) -> None:
        """Follow further models from here on."""
        new = [model for model in models if not any(model is known for known in self._models)]
        self._models += new
        self._before += _trainable(new)
        self._look()
        self._key = None

    def _look(self) -> None:
        """Find what decides which parameters train."""
        self._flagged = [holder for model in self._models for holder in _flagged(model)]
        self._tree = [layer for model in self._models for layer in (model, *descendants(model))]
        self._sequences = [layer for layer in self._tree if isinstance(layer, tf.keras.Sequential)]

    def key(self) -> tuple[int, ...]:
        """Return all flags and layers as they are now: part of what picks the trace of a compiled step."""
        return (*[holder.trainable for holder in self._flagged], *self.layout())

    def layout(self) -> tuple[int, ...]:
        """Return what changes whenever a layer is added to the models, exchanged or taken away."""
        layers = [id(layer) for sequence in self._sequences for layer in sequence.layers]
        return (*layers, *[each for layer in self._tree for each in tracked(layer)])

    def check(self) -> None:
        """Refuse layers that came into the models, see :meth:`training`."""
        self.training({})

    def training(self, named: Named) -> Named:
        """Return those of the named variables that train now.

        Raises:
            PrepareError: a variable became trainable that no prepared optimizer holds.
        """
        if not self._models:
            return named
        key = self.key()
        if key != self._key:
            found = list(_trainable(self._models))
            self._check_owned(found)
            self._look()
            self._ids, self._key = frozenset(map(id, found)), self.key()
        return {name: variable for name, variable in named.items() if id(variable) in self._ids}

    def _check_owned(self, found: Sequence[Variable]) -> None:
        owned = set(self._owned())
        known = owned | set(map(id, self._before))
        untrained = {variable.name for variable in self._before if id(variable) not in owned}
        strange = [each.name for each in found if id(each) not in known and each.name not in untrained]
        if strange:
            raise errors.PrepareError(
                f"{errors.first_names(strange)} became trainable after amp.prepare, and no prepared optimizer holds "
                "them, so they would not train; call amp.prepare once the model has all of its layers and every layer "
                "that is to train at some time is trainable, and freeze layers afterwards"
            )


def _flagged(model: Model) -> list[Layer | Variable]:
    """Return what decides a model's ``trainable_variables``: in Keras 3 the model and each variable."""
    if all(isinstance(variable, tf.Variable) for variable in model.variables):
        return [model, *descendants(model)]
    return [model, *model.variables]


def _trainable(models: Iterable[Model]) -> Iterable[Variable]:
    return (native(variable) for model in models for variable in model.trainable_variables)
