"""The role that counts the values of matrix products."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from unifiedamp.backend import Forecaster, ProductCounts, TensorCounts, forecast

from ..compiling.force_eager import ForceEager
from ..layer_paths import plain_name
from ..precision.casts import tensors
from ..precision.float8_layers import rejection_reason
from ..training.gradients import dense
from ..training.step_context import StepContext
from .attention import AttentionCounter
from .product_counts import DeviceCounts, StepValues
from .scaled_values import scale_values
from .step_recorder import in_training

nn = torch.nn
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
COUNTED: tuple[type[nn.Module], ...] = (nn.Linear, *CONVS)


class LayerCounts:
    """One layer in one step.

    Args:
        path, kind: the layer's.
        float8: why it would not run in float8.
        scalings: counted of operands.
        step: counts the values of all layers.
        holds_layers: see ``ProductCounts``.

    Attributes:
        path: see the argument.
        work: multiplications so far.
        tensors: name, and scaling or "" → counts, on the layer's device.
    """

    def __init__(
        self, path: str, kind: str, float8: str, scalings: Sequence[str], step: StepValues, holds_layers: bool = False
    ) -> None:
        self.path, self._kind, self._float8, self._scalings = path, kind, float8, scalings
        self._step, self._holds_layers = step, holds_layers
        self.work = 0
        self.tensors: dict[tuple[str, str], DeviceCounts] = {}

    def add(self, name: str, tensor: torch.Tensor, inverse: torch.Tensor | None = None) -> None:
        """Count a tensor's values; one without values is left out."""
        if not tensor.numel():
            return
        self._count(name, "", tensor, inverse)
        if self._scalings and name in forecast.OPERANDS:
            with torch.no_grad():
                values = dense(tensor.detach()).float()
                values = values if inverse is None else values * inverse.to(values.device)
                for scaling in self._scalings:
                    matrix = values.reshape(-1, values.shape[-1])
                    self._count(name, scaling, scale_values(matrix, scaling, name == "weight"), None)

    def _count(self, name: str, scaling: str, tensor: torch.Tensor, inverse: torch.Tensor | None) -> None:
        self._step.add(self.tensors.setdefault((name, scaling), DeviceCounts()), tensor, inverse)

    def read(self, rows: Iterator[tuple[Any, float]]) -> ProductCounts:
        """Return what was counted; ``rows`` yields the counts and the largest value of each tensor."""
        found = {key: TensorCounts(*next(rows)) for key in self.tensors}
        tensors = forecast.by_tensor(found)
        return ProductCounts(self.path, self._kind, self.work, self._float8, tensors, self._holds_layers)


class TorchForecaster(Forecaster):
    """Counts in forward hooks of linear and convolutional layers, in calls of attention, and in hooks on the gradients
    of outputs and weights; compiled code runs uncompiled meanwhile.

    Args:
        device: the session's.
        steps: what the session's roles share of its steps.

    Attributes:
        counting: whether this step is counted.
    """

    means = (
        "forward hooks of linear and convolutional layers, calls of scaled_dot_product_attention; what is compiled "
        "runs uncompiled meanwhile"
    )
    scalings = tuple(forecast.SCALINGS)
    UNTRACED = ("begin", "note_gradients", "end")
    """Methods that run uncompiled inside compiled steps."""

    def __init__(self, device: torch.device, steps: StepContext) -> None:
        self._device, self._steps = device, steps
        self.counting, self._wanted = False, tuple[str, ...]()
        self._layers: dict[str, LayerCounts] = {}
        self._values = StepValues()
        self._remove: list[Callable[[], None]] = []
        self._watched: set[tuple[str, int]] = set()

    def begin(self, scalings: Sequence[str] = ()) -> None:
        self.end()
        self.counting, self._wanted = True, tuple(scalings)
        self._remove.append(functools.partial(ForceEager().__enter__().__exit__, None, None, None))
        attention = AttentionCounter(self._attention_layer, self._inverse)
        self._remove.append(attention.stop)
        for index, model in enumerate(self._steps.prepared.models):
            attention.follow(f"model{index}." if index else "", model)
            for path, module in model.named_modules():
                if isinstance(module, COUNTED):
                    plain = plain_name(path)
                    self._hook(plain if not index else f"model{index}.{plain}".rstrip("."), module)

    def _attention_layer(self, path: str, module: nn.Module, holds_layers: bool) -> LayerCounts:
        kind = type(module).__name__
        layer = LayerCounts(path, kind, forecast.NO_FLOAT8_ATTENTION, (), self._values, holds_layers)
        return self._layers.setdefault(path, layer)

    def _hook(self, path: str, module: nn.Module) -> None:
        why = rejection_reason(path, module, {}) if isinstance(module, nn.Linear) else "only linear layers are"
        wanted = self._wanted if isinstance(module, nn.Linear) else ()
        layer = LayerCounts(path, type(module).__name__, why, wanted, self._values)

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if not isinstance(output, torch.Tensor):
                return
            if output.requires_grad:  # also where a layer is recomputed, whose first pass may have had no gradient
                listen: Any = output.register_hook
                listen(functools.partial(self._gradient, layer))
            if in_training(module):
                self._forward(layer, module, next(tensors([args, kwargs])), output)

        def before(module: nn.Module, _: Any) -> None:
            self._watch_weight(layer, module.weight)

        self._remove.append(module.register_forward_pre_hook(before).remove)
        self._remove.append(module.register_forward_hook(after, with_kwargs=True).remove)

    def _watch_weight(self, layer: LayerCounts, weight: Any) -> None:
        """Hook the weight that a layer has while it runs: ``fully_shard`` gives it another one then."""
        if weight.requires_grad and weight.is_leaf and (layer.path, id(weight)) not in self._watched:
            self._watched.add((layer.path, id(weight)))
            self._remove.append(weight.register_hook(functools.partial(self._weight_gradient, layer)).remove)

    def _forward(self, layer: LayerCounts, module: nn.Module, x: torch.Tensor, out: torch.Tensor) -> None:
        self._layers.setdefault(layer.path, layer)
        weight: Any = module.weight
        wide = x if type(module).__name__.startswith("ConvTranspose") else out  # what each kernel is applied at
        layer.work += wide.numel() * weight.numel() // weight.shape[0]
        layer.add("weight", weight)
        layer.add("input", x)
        layer.add("output", out)

    def _gradient(self, layer: LayerCounts, gradient: torch.Tensor) -> None:
        if self.counting:
            layer.add("gradient", gradient, self._inverse())

    def _weight_gradient(self, layer: LayerCounts, gradient: torch.Tensor) -> None:
        if self.counting:
            layer.add("weight_gradient", gradient, self._inverse())

    def _inverse(self) -> torch.Tensor | None:
        scaler = self._steps.scaler
        return None if scaler is None else scaler.scale_tensor.reciprocal()

    def end(self) -> list[ProductCounts]:
        while self._remove:
            self._remove.pop()()
        self._watched.clear()
        self.counting, layers = False, list(self._layers.values())
        self._layers, values, self._values = {}, self._values, StepValues()
        values.count()
        rows = [each for layer in layers for each in layer.tensors.values()]
        if not rows:
            return []
        counts = torch.stack([_on(each.counts, self._device) for each in rows]).cpu().numpy()
        highest = torch.stack([_on(each.largest, self._device) for each in rows]).tolist()
        read = iter(zip(counts, highest, strict=True))
        return [layer.read(read) for layer in layers]


def _on(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    assert tensor is not None
    return tensor.to(device)
