"""The torch backend: what ``unifiedamp.backend.Backend`` asks for, in torch's own means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from unifiedamp.backend import (
    Backend,
    Capabilities,
    NonFiniteReport,
    PlanRow,
    Policy,
    ScaleState,
    SessionSpec,
    StepResult,
    Support,
    errors,
)

from . import binding, casts, device
from .autocast import Inference, Region
from .compile import compile_step
from .scaler import Scaler
from .steps import Handle, PlainSteps, ScaledSteps, checked_loss


class TorchBackend(Backend):
    """One session on torch."""

    name: ClassVar[str] = "torch"

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(spec)
        spec.check_options(("cache_enabled",), self.name)
        self.device = device.pick_device(spec.device)
        self.looking_is_free = device.looking_is_free(self.device)
        self._regions: dict[tuple[bool, Policy | None], Region] = {}
        self._names = binding.Names()
        self._models: list[torch.nn.Module] = []
        self._optimizers: list[Any] = []
        self._undo: list[Callable[[], Any]] = []
        self._report = NonFiniteReport()
        self._loss: torch.Tensor | None = None
        self._steps: Any = PlainSteps()
        if spec.loss_scale.enabled:
            scaler = Scaler(self.device, spec.loss_scale, self.looking_is_free)
            self._steps = ScaledSteps(scaler, self.looking_is_free, self._note_skip)

    @classmethod
    def default_policy(cls, wanted: str | None) -> tuple[str, str]:
        return device.default_policy(wanted)

    def capabilities(self) -> Capabilities:
        return Capabilities(
            str(self.device),
            device.policy_support(self.device),
            {
                "context_form": Support(True),
                "compile": Support(True),
                "loss_scaling": Support(True),
                "accumulation": Support(True),
                "several_optimizers": Support(True),
            },
        )

    def explain(self) -> list[PlanRow]:
        return []

    def scope(self) -> AbstractContextManager[None]:
        return nullcontext()

    def is_model(self, obj: Any) -> bool:
        return isinstance(obj, torch.nn.Module)

    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        for model in models:
            self._names.add(model, len(self._models))
            self._models.append(model)
            hook = model.register_forward_hook(casts.OutputCast(casts.DTYPES[self.spec.policy.output_dtype]))
            self._undo.append(hook.remove)
        self._optimizers += optimizers
        return list(models), list(optimizers)

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        region = self._regions.get((enabled, policy))
        if region is None:
            region = self._regions[enabled, policy] = self._make_region(enabled, policy or self.spec.policy)
        return region

    def _make_region(self, enabled: bool, policy: Policy) -> Region:
        low = enabled and policy.compute_dtype != self.spec.policy.param_dtype
        return Region(self.device.type, casts.DTYPES[policy.compute_dtype] if low else None, True)

    def inference(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        return Inference(self.autocast(True, None), models)

    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> AbstractContextManager[Handle]:
        value = checked_loss(loss)
        self._loss = value.detach()
        value = self._steps.scaled(value)
        if self.spec.accumulate_steps > 1:
            value = value / self.spec.accumulate_steps
        inputs = None
        if len(optimizers) < len(self._optimizers):
            inputs = [p for each in optimizers for p in binding.parameters(each) if p.requires_grad]
        return Handle(value, inputs)

    def unscale(self, optimizer: Any) -> None:
        self._steps.unscale(optimizer)

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        return torch.nn.utils.clip_grad_norm_(binding.parameters(optimizer), max_norm)

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        torch.nn.utils.clip_grad_value_(binding.parameters(optimizer), clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        return {self._names.of(p): p.grad for p in binding.parameters(optimizer) if p.grad is not None}

    def step(self, optimizer: Any, update: bool) -> StepResult:
        return self._steps.step(optimizer, update)

    def update(self) -> None:
        self._steps.update()

    def drop_gradients(self, optimizer: Any) -> None:
        self._steps.drop(optimizer)

    def read_state(self) -> ScaleState:
        return self._steps.read()

    def write_state(self, state: ScaleState) -> None:
        self._steps.write(state)

    def _note_skip(self, optimizer: Any) -> None:
        if not self.diagnosing:
            return
        bad = [name for name, grad in self.gradients(optimizer).items() if not bool(torch.isfinite(grad).all())]
        self._report = NonFiniteReport(tuple(bad), bool(torch.isfinite(self._loss)))

    def non_finite_report(self) -> NonFiniteReport:
        return self._report

    def compile(self, fn: Callable[..., Any], window: Any) -> Callable[..., Any]:
        return compile_step(fn)

    def to_native(self, array: Any) -> Any:
        return torch.from_numpy(array).to(self.device)

    def to_numpy(self, tensor: Any) -> Any:
        return tensor.detach().float().cpu().numpy()
