"""Names of layers and parameters, without what ``torch.compile`` adds to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch


def plain_name(name: str) -> str:
    """Return a layer's or parameter's name without the wrapper that ``torch.compile`` puts around a module."""
    return name.replace("_orig_mod.", "")


def modules_by_path(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return layer path → module; the model itself has the path ""."""
    return {plain_name(path): module for path, module in model.named_modules()}


class ParamNames:
    """The names of all prepared models' parameters.

    A name that an earlier model has too is prefixed with ``model<index>.``.
    """

    def __init__(self, names: Mapping[int, str] | None = None, models: Sequence[torch.nn.Module] = ()) -> None:
        self._names = dict(names or {})
        self._models = list(models)  # keeps the parameters alive, and so their ids unique

    def with_models(self, models: Sequence[torch.nn.Module]) -> ParamNames:
        """Return the names with those of more models added, and of what came into the known ones since."""
        more = ParamNames(self._names, [*self._models, *models])
        for index, model in enumerate(more._models):
            more._add(index, model)
        return more

    def _add(self, index: int, model: torch.nn.Module) -> None:
        taken = set(self._names.values())
        for name, param in model.named_parameters():
            plain = plain_name(name)
            self._names.setdefault(id(param), plain if plain not in taken else f"model{index}.{plain}")

    def __contains__(self, param: torch.Tensor) -> bool:
        return id(param) in self._names

    def of(self, param: torch.Tensor) -> str:
        """Return a parameter's name; its shape where it was added to the optimizer after ``prepare``."""
        return self._names.get(id(param)) or f"parameter of shape {tuple(param.shape)}"


def is_in(obj: object, known: Iterable[object]) -> bool:
    """Return whether ``obj`` is one of ``known``, by identity."""
    return any(obj is each for each in known)
