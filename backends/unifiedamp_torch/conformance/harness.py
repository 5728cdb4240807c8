"""What the test suite needs of torch: plain torch code, no unifiedamp but the interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from unifiedamp.backend import LossScale
from unifiedamp.conformance.harness import Array, Harness
from unifiedamp.conformance.ranks import Answers, RankCase, RankKind

from .models import (
    Attention,
    ComplexProbe,
    ConvNet,
    Joined,
    Kept,
    Mapped,
    Mlp,
    Picked,
    Probe,
    Ratio,
    Residual,
    Structured,
    linear,
)
from .operations import OF_TWO, OPERATIONS
from .rank_models import KINDS

ON_GPU = torch.cuda.is_available()
"""There all optimizers are fused, as one that decides on the device must be; elsewhere some, so that both kinds are
tested."""


class TorchHarness(Harness):
    """torch's side of the suite."""

    backend: ClassVar[str] = "torch"
    forms: Mapping[str, Mapping[str, Any]] = {
        "eager": {}, "compiled": {}, **({"max": {}} if ON_GPU else {"eager-on-device": {"scale_on_device": True}}),
    }  # fmt: skip
    forms_that_warm_up: Sequence[str] = ("max",)  # the first calls are not compiled by Inductor
    scaling_policies: Sequence[str] = ("mixed_bfloat16", "mixed_float16")
    float8_emulation: Mapping[str, Any] = {"emulate": True}
    rank_kinds: Mapping[str, RankKind] = KINDS if torch.distributed.is_available() else {}

    def probe(self, values: Sequence[float]) -> nn.Module:
        return Probe(values)

    def mlp(self, weights: Sequence[tuple[Array, Array]]) -> nn.Module:
        return Mlp(weights)

    def convnet(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return ConvNet()

    def ratio(self, epsilon: float) -> nn.Module:
        model = nn.Sequential()
        model.add_module("dense", nn.Linear(4, 4))
        model.add_module("ratio", Ratio(epsilon))
        return model

    def image_batch(self, array: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(array, -1, 1))

    def sgd(self, models: Sequence[Any], learning_rate: float, momentum: float = 0.0) -> torch.optim.Optimizer:
        # On a CPU, torch's fused SGD without momentum leaves bfloat16 parameters as they are; it takes no complex ones.
        params = _trainable(models)
        fused = (ON_GPU or momentum > 0) and not any(param.is_complex() for param in params)
        return torch.optim.SGD(params, lr=learning_rate, momentum=momentum, fused=fused)

    def adam(self, models: Sequence[Any], learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(_trainable(models), lr=learning_rate, fused=ON_GPU)

    def mean_square(self, output: Any, target: Any) -> torch.Tensor:
        return nn.functional.mse_loss(output.float(), target)  # on GPUs, both must have one dtype

    def cross_entropy(self, logits: Any, labels: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, labels.long())

    def parameters(self, model: Any) -> dict[str, Array]:
        return {
            name.replace("_orig_mod.", ""): param.detach().cpu().double().numpy().copy()
            for name, param in model.named_parameters()
            if param.requires_grad
        }

    def set_parameters(self, model: nn.Module, values: Mapping[str, Array]) -> None:
        model.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()}, strict=False)

    def optimizer_steps(self, optimizer: Any) -> int:
        if not isinstance(optimizer, torch.optim.Adam):
            raise NotImplementedError("torch's SGD keeps no count of its steps")
        return max((int(state["step"]) for state in optimizer.state.values()), default=0)

    def set_gradients(self, amp: Any, optimizer: Any, values: Mapping[str, Array]) -> None:
        for name, grad in amp.gradients(optimizer).items():
            if name in values:
                grad.copy_(torch.from_numpy(np.asarray(values[name], np.float32)).reshape(grad.shape))

    def interrupted_update(self, optimizer: Any, error: BaseException) -> AbstractContextManager[None] | None:
        # On a GPU, updates that are rounded are kernels of this backend; the optimizer's own is not called.
        first = next(iter(optimizer.param_groups))["params"][0]
        if first.is_cuda and first.dtype is torch.bfloat16:
            return None
        return self._broken_update(optimizer, error)

    @contextmanager
    def _broken_update(self, optimizer: Any, error: BaseException) -> Iterator[None]:

        def broken(*_: Any, **__: Any) -> None:
            group = next(iter(optimizer.param_groups))  # as optimizers go through them
            first = group["params"][0]
            with torch.no_grad():
                first.sub_(first.grad, alpha=group["lr"])
            raise error

        optimizer.step = broken
        try:
            yield
        finally:
            del optimizer.step

    def native_backward(self, loss: Any) -> bool:
        loss.backward()
        return True

    def native_step(self, optimizer: Any) -> bool:
        optimizer.step()
        return True

    def run_op(self, op: str) -> str | None:
        run = OPERATIONS.get(op)
        # An autocast region is of one device type: run where the present one acts.
        device = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
        return None if run is None else self.dtype_of(run(torch.linspace(0.1, 1.0, 64, device=device).reshape(8, 8)))

    def global_state(self) -> Any:
        devices = ("cpu", "cuda")
        return (
            [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices],
            torch.is_autocast_cache_enabled(),
            (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting())[1],
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_float32_matmul_precision(),
            [
                torch._C._dispatch_dump(f"aten::{name}").count("unifiedamp")
                for name in ("matmul", "linear", "softmax.int", "layer_norm", "exp", "sum")
            ],
        )

    def native_loop(self, amp: Any, model: nn.Module, optimizer: Any, checks_first: bool) -> Callable[[Any], None]:
        scaler = amp.backend.interop.scaler

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            scaler.scale(model(x)).backward()
            if checks_first:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

        return step

    def set_trainable(self, model: nn.Module, layer: str, trainable: bool) -> None:
        model.get_submodule(layer).requires_grad_(trainable)

    def device_run(self, gradients: Sequence[float], loss_scale: LossScale) -> list[tuple[float, int]]:
        from .one_step import step_on_ranks

        return [(weight, skipped) for (weight,), skipped in step_on_ranks([(g,) for g in gradients], loss_scale)]

    def run_ranks(self, kind: str, count: int, form: str, cases: Sequence[RankCase]) -> Answers:
        from .ranks import run_on_ranks

        return run_on_ranks(kind, count, form, self.forms[form], cases)

    # -- optional ------------------------------------------------------------------------------------------------

    def grouped_sgd(self, model: Any, learning_rates: Sequence[float]) -> torch.optim.Optimizer:
        params = zip(model.parameters(), learning_rates, strict=True)
        return torch.optim.SGD([{"params": [param], "lr": rate} for param, rate in params], fused=True)

    def decaying_sgd(self, model: Any, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(_trainable([model]), lr=learning_rate, weight_decay=weight_decay, fused=True)

    def sparse(self, table: Array, learning_rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        """See ``Harness``; no fused optimizer takes sparse gradients."""
        model = Picked(table)
        return model, torch.optim.SGD(model.parameters(), lr=learning_rate)

    def wide_probe(self, values: Sequence[float]) -> nn.Module:
        model = Probe(values)
        for param in list(model.parameters())[1::2]:
            param.data = param.data.double()
        return model

    def complex_probe(self, values: Sequence[complex]) -> nn.Module:
        return ComplexProbe(values)

    def cast(self, tensor: Any, dtype: str) -> Any:
        """See ``Harness``."""
        return tensor.to(getattr(torch, dtype))

    def selections(self, tensor: Any) -> Mapping[str, Any]:
        positive, detached = tensor * (tensor > 0), tensor * tensor.detach()
        largest, top = tensor.amax(1), tensor.topk(2, 1).values
        return {"largest": largest.sum(), "top": top.sum(), "positive": positive.sum(), "detached": detached.sum()}

    def structured(self, weight: Array, bias: Array) -> nn.Module:
        return Structured(linear(weight, bias, torch.float32))

    def attention(self, projections: Sequence[Array], heads: int) -> nn.Module:
        model = nn.Sequential()
        model.add_module("attention", Attention(projections, heads))
        return model

    def mapped(self, weight: Array, bias: Array) -> nn.Module:
        return Mapped(linear(weight, bias, torch.float32))

    def kept_dense(self, weight: Array, bias: Array) -> nn.Module:
        return Kept(linear(weight, bias, torch.float32))

    def layer_sgd(self, model: nn.Module, layer: str, learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.get_submodule(layer).parameters(), lr=learning_rate, fused=True)

    def run_op_on(self, op: str, dtypes: Sequence[str]) -> str:
        device = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
        x, y = [torch.ones(8, 8, dtype=getattr(torch, dtype), device=device) for dtype in dtypes]
        return self.dtype_of(OF_TWO[op](x, y))

    def native_calls(self, optimizer: Any) -> Mapping[str, Callable[[], object]]:
        return {"step": optimizer.step, "step with a closure": lambda: optimizer.step(lambda: torch.zeros(()))}

    def wide_dense(self, weight: Array, bias: Array) -> nn.Module:
        return nn.Sequential(linear(weight, bias, torch.float64))

    def layer_norm(self, size: int) -> nn.Module:
        model = nn.Sequential()
        model.add_module("dense", nn.Linear(size, size))
        model.add_module("norm", nn.LayerNorm(size))
        return model

    def residual(self, weight: Array) -> nn.Module:
        return Residual(linear(weight, np.zeros(len(weight), np.float32), torch.float32))

    def joined(self, weights: Sequence[Array]) -> nn.Module:
        return Joined(*[linear(each, np.zeros(each.shape[1], np.float32), torch.float32) for each in weights])

    def sized(self, kind: str) -> nn.Module:
        if kind == "recurrent":
            return nn.Sequential(nn.LSTM(13, 7))
        if kind.startswith("late"):
            return nn.Sequential(nn.LazyConv2d(12, 3) if kind == "late convolution" else nn.LazyConvTranspose2d(12, 3))
        return nn.Sequential(nn.Conv2d(10, 10, 3, groups=10) if kind == "depthwise" else nn.ConvTranspose2d(10, 12, 3))

    def dropout(self, size: int, rate: float) -> nn.Module:
        model = nn.Sequential()
        model.add_module("dense", nn.Linear(size, size))
        model.add_module("drop", nn.Dropout(rate))
        return model

    def nested_norm(self, size: int) -> nn.Module:
        model = nn.Sequential()
        model.add_module("block", self.layer_norm(size))
        return model

    def clipped_device_run(
        self, gradients: Sequence[tuple[float, float]], max_norm: float, loss_scale: LossScale
    ) -> list[list[float]]:
        from .one_step import step_on_ranks

        return [weights for weights, _ in step_on_ranks(gradients, loss_scale, max_norm)]

    def extend(self, optimizer: Any, model: Any) -> None:
        optimizer.add_param_group({"params": list(model.parameters())})

    def replace_weight(self, model: nn.Module, layer: str, factor: float) -> None:
        module = model.get_submodule(layer)
        weight: Any = module.weight
        frozen = nn.Parameter(factor * weight.detach(), requires_grad=False)
        setattr(module, "weight", frozen)  # noqa: B010  # checked as a Tensor

    def put_layer(self, model: Any, layer: str, weight: Array, bias: Array) -> nn.Module:
        added = linear(weight, bias, torch.float32).to(next(model.parameters()).device)
        setattr(model, layer, added)
        model.depth = int(layer.removeprefix("layer")) + 1
        return added

    def cast_model(self, model: nn.Module, dtype: str) -> None:
        model.to(getattr(torch, dtype))

    def rest(self, model: Any, layer: str) -> None:
        model.get_submodule(layer).eval()

    @contextmanager
    def other_state(self) -> Iterator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("meta"), torch.autocast("cpu", torch.float16, cache_enabled=False), torch.no_grad():
                yield
        finally:
            torch.set_default_dtype(before)

    def attached(self, obj: Any) -> Any:
        if isinstance(obj, torch.optim.Optimizer):
            groups = [{**group, "params": list(map(id, group["params"]))} for group in obj.param_groups]
            hooks = [list(value) for name, value in sorted(vars(obj).items()) if name.endswith("_hooks")]
            return groups, hooks, sorted(name for name in vars(obj) if callable(vars(obj)[name]))
        return [_attached(module) for module in obj.modules()]

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")


def _attached(module: nn.Module) -> Any:
    own = vars(module)
    hooks = {name: list(value.values()) for name, value in own.items() if name.endswith("hooks") and value}
    return type(module), sorted(name for name in own if callable(own[name])), hooks, module.training


def _trainable(models: Sequence[Any]) -> list[torch.nn.Parameter]:
    return [param for model in models for param in model.parameters() if param.requires_grad]


harness = TorchHarness()
