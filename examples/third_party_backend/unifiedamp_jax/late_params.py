"""Parameters that come into a model after ``amp.prepare``: without an optimizer they would not train, in silence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from flax import nnx

from unifiedamp.backend import errors

Path: TypeAlias = "tuple[Any, ...]"


class LateParams:
    """The parameters that models had when they were prepared, kept alive so that no other one gets their identity."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Path, nnx.Variable]] = {}
        self._models = 0

    def note(self, models: Sequence[nnx.Module]) -> None:
        """Note those of models that were not noted before.

        Args:
            models: all prepared models.
        """
        for path, one in _params(models):
            if path[0] >= self._models:
                self._known.setdefault(id(one), (path, one))
        self._models = len(models)

    def find(self, models: Sequence[nnx.Module], owned: set[int]) -> tuple[str, ...]:
        """Return the names of those that came later, have no optimizer, and do not take the place of one without.

        Args:
            models: all prepared models.
            owned: the ids of the parameters that optimizers have.
        """
        new = [path for path, one in _params(models) if id(one) not in self._known and id(one) not in owned]
        untrained = {path for key, (path, _) in self._known.items() if key not in owned} if new else ()
        return tuple(".".join(map(str, path[1:])) for path in new if path not in untrained)


def refuse(late: tuple[str, ...], gone: tuple[str, ...]) -> None:
    """Refuse to train models whose parameters changed.

    Args:
        late: the names of those that came later, from :meth:`LateParams.find`.
        gone: the names of those that optimizers have and models have no longer.

    Raises:
        PrepareError: there are some.
    """
    if late:
        raise errors.PrepareError(
            f"{errors.first_names(late)} came into a model after amp.prepare, and no optimizer of the session has "
            "them, so they would not train; call amp.prepare(model, optimizer) with an optimizer over them, for "
            "example unifiedamp_jax.Optimizer(model.layer, tx)"
        )
    if gone:
        raise errors.PrepareError(
            f"{errors.first_names(gone)}, which an optimizer trains, left the prepared models; make an optimizer over "
            "the model as it is, and prepare both in another session"
        )


def _params(models: Sequence[nnx.Module]) -> Iterable[tuple[Path, nnx.Variable]]:
    """Yield the path in the list of models, and the parameter."""
    for path, one in nnx.iter_graph(nnx.List(models), graph=True):
        if isinstance(one, nnx.Param):
            yield tuple(path), one
