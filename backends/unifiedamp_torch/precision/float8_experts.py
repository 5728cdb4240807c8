"""Modules whose grouped products run in float8, and what ``amp.explain()`` says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from unifiedamp.backend import Float8Recipe, PlanRow

from ..device.kinds import traits
from ..layer_paths import modules_by_path
from .autocast import Region, in_bfloat16
from .float8 import How
from .float8_casts import ROW
from .float8_grouped import MULTIPLE, Operands, grouped
from .layers import Forward, dtype_at

_NAMES = (torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm")
_GROUPED = [getattr(module, name) for module, name in _NAMES if hasattr(module, name)]
"""In eager mode the second one calls the first; dynamo takes it as it is."""


class GroupedProducts(TorchFunctionMode):
    """Runs ``torch.nn.functional.grouped_mm`` in float8 inside, where autocast to bfloat16 is on; dynamo traces it.

    Args:
        region: a region without autocast.
        how: how the products compute.
        emulate: see ``float8_grouped.grouped``.
    """

    def __init__(self, region: Region, how: How, emulate: bool) -> None:
        super().__init__()
        self._region, self._how, self._emulate = region, how, emulate
        self._device = region.device

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _GROUPED and in_bfloat16(self._device):
            given = Operands.read(args, kwargs)
            if given.suit():
                with self._region:
                    return grouped(given.x, given.weight, given.offs, self._how, self._emulate)
        return func(*args, **kwargs)


class ExpertsForward(Forward):
    """The ``forward`` of a module of experts, with grouped products in float8.

    Args:
        module: it holds the weights of its experts in one parameter, of shape (experts, …, …).
        region: a region without autocast, for the module's device type.
        how: how the products compute.
        emulate: see ``float8_grouped.grouped``.
    """

    def __init__(self, module: torch.nn.Module, region: Region, how: How, emulate: bool) -> None:
        super().__init__(module)
        self._mode = GroupedProducts(region, how, emulate)  # dynamo traces none that is made in what it traces

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        if self.removed:
            return self.plain(*args, **kwargs)
        with self._mode:
            return self.plain(*args, **kwargs)


def choose(
    model: torch.nn.Module, dtypes: Mapping[str, str], unsupported: str, min_features: int = 0
) -> dict[str, str]:
    """Return module path → why its grouped products do not run in float8 ("" where they do), for modules of experts.

    Args:
        model: the model.
        dtypes: layer path → dtype that ``layer_overrides`` gave it.
        unsupported: why none does; see :func:`why_unsupported`.
        min_features: the smallest number of inputs and of outputs of an expert.
    """
    found = {}
    for path, module in modules_by_path(model).items():
        weights = _stacked(module)
        if weights:
            found[path] = unsupported or _rejection_reason(dtype_at(path, dtypes), weights, min_features)
    return found


def _stacked(module: torch.nn.Module) -> dict[str, torch.Size]:
    """Return name → shape of the parameters that hold a matrix for each expert; torch's convolutions have others."""
    if type(module).__module__.startswith("torch.nn."):
        return {}
    parameters = module._parameters.items()
    return {name: each.shape for name, each in parameters if each is not None and each.dim() == 3}


def _rejection_reason(kept: str | None, weights: Mapping[str, torch.Size], min_features: int) -> str:
    if kept:
        return f"layer_overrides: {kept}"
    odd = [f"{name}: {tuple(size)}" for name, size in weights.items() if any(n % MULTIPLE for n in size[1:])]
    if odd:
        return f"{', '.join(odd)}: not multiples of {MULTIPLE}"
    small = [f"{name}: {tuple(size)}" for name, size in weights.items() if min(size[1:]) < min_features]
    if small:
        return f"{', '.join(small)}: below float8_min_features={min_features}"
    return "" if _seen_by_dynamo() is not None else f"torch {torch.__version__} would not do so in compiled code"


def why_unsupported(how: How, recipe: Float8Recipe, emulate: bool, device: torch.device) -> str:
    """Return why grouped products do not run in float8 under a recipe; "" where they do."""
    if how.scaling != ROW:
        return f"recipe {recipe.name}: torch's grouped float8 product has scales of rows (rowwise, rowwise_gw_hp)"
    if not hasattr(torch.nn.functional, "grouped_mm"):
        return f"torch.nn.functional.grouped_mm came with torch 2.10, this is {torch.__version__}"
    answer = traits(device).float8_grouped(device)
    return "" if emulate or answer else answer.reason


def wrap(
    model: torch.nn.Module, paths: Sequence[str], device_type: str, how: How, emulate: bool
) -> list[Callable[[], None]]:
    """Run the grouped products of modules in float8; return what undoes it."""
    seen = _seen_by_dynamo() if paths else None
    if seen is not None:
        seen.update(_GROUPED)
    modules, region = modules_by_path(model), Region(device_type, None)
    return [ExpertsForward(modules[path], region, how, emulate).remove for path in paths]


def _seen_by_dynamo() -> set[Any] | None:
    """Return the functions that dynamo passes to ``TorchFunctionMode``; None where this torch keeps no such set.

    Dynamo leaves out functions whose names begin with an underscore, which eager mode passes on.
    """
    try:
        from torch._dynamo.variables.torch import get_overridable_functions
    except ImportError:
        return None
    return get_overridable_functions()


def rows(models: Sequence[Mapping[str, str]], recipe: Float8Recipe, emulate: bool) -> list[PlanRow]:
    """Return the rows of ``amp.explain()``, one for each module of experts; arguments as in ``float8_layers.rows``."""
    native = recipe.emulation_text() if emulate else "torch._scaled_grouped_mm, forward and backward"
    found = []
    for index, model in enumerate(models):
        for path, why in model.items():
            name = f"float8.{f'model{index}.{path}' if len(models) > 1 else path or '(the model)'}"
            if why:
                found.append(PlanRow(name, "not float8", "as its code casts it", note=f"grouped products: {why}"))
            else:
                note = "torch.nn.functional.grouped_mm"
                found.append(PlanRow(name, recipe.layer_format, native, "emulated" if emulate else "native", note))
    return found
