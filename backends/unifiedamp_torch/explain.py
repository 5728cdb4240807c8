"""The plan: what a session's settings become in torch's calls, as the rows of ``amp.explain()``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from unifiedamp.backend import PlanRow, Policy, SessionSpec, errors

from .device.kinds import traits
from .device.selection import dtype_support
from .options import TorchOptions
from .precision import emulation, operations
from .precision.layers import rnns_need_float32
from .training.prepare_checks import wide_parameters


def rows(
    spec: SessionSpec,
    options: TorchOptions,
    device: torch.device,
    cache: bool,
    optimizers: Sequence[torch.optim.Optimizer],
    shared: str = "",
) -> list[PlanRow]:
    """Return the backend's rows of ``amp.explain()``.

    Args:
        spec: the session's.
        options: the session's.
        device: the session's.
        cache: regions keep casts of parameters.
        optimizers: the prepared ones.
        shared: why steps run as they are written; empty where they are compiled.
    """
    policy = spec.policy
    low = emulation.uses_autocast(policy)
    runs = f"dtype=torch.{policy.region_dtype}, cache_enabled={cache}" if low else "enabled=False"
    helps = dtype_support(device, policy.compute_dtype, options.emulate or policy.emulate)[1]
    plan = [
        device_row(device, options.scope_device),
        PlanRow(
            "compute_dtype", policy.compute_dtype, f"torch.autocast({device.type!r}, {runs})",
            note=helps.reason if helps else f"runs but cannot help: {helps.reason}",
        ),
        _param_row(policy),
        *_master_rows(spec),
        *_update_rows(policy),
        PlanRow("output_dtype", policy.output_dtype, f"forward hook: output.to(torch.{policy.output_dtype})"),
        *_scale_rows(spec, device),
        *_accumulation_rows(spec),
        *_override_rows(policy, device),
        *_rnn_rows(policy, device),
    ]  # fmt: skip
    plan += [_optimizer_row(index, each, spec, device) for index, each in enumerate(optimizers)]
    plan += _compile_rows(spec.compile_mode, device, shared)
    plan.append(_native_row())
    return plan


def float64_rows(policy: Policy, models: Iterable[torch.nn.Module]) -> list[PlanRow]:
    """Return the row on parameters that a policy of fewer bits leaves in float64; none where there are none."""
    wide, count = wide_parameters(models)
    if not wide or (policy.compute_dtype == "float32" and not policy.layer_overrides):
        return []
    note = f"{len(wide)} of {count} ({errors.first_names(wide)}); float32 ones follow the policy"
    return [PlanRow("float64 parameters", "float64", "autocast leaves float64 as it is", "no effect", note)]


def _update_rows(policy: Policy) -> list[PlanRow]:
    """Return the rows on updates of bfloat16 parameters without master weights, and on moments."""
    rows = []
    if policy.state_dtype is not None:
        size = "2 bytes" if policy.state_dtype == "bfloat16" else "1 byte and a float32 scale for 256 numbers"
        note = f"{size} per number in place of 4, rounded stochastically (seed {policy.update_seed})"
        native = "optimizer.state between steps; float32 while optimizer.step() runs, a few parameters at a time"
        rows.append(PlanRow("state_dtype", policy.state_dtype, native, "emulated", note))
    if policy.update is None:
        return rows
    kept = "2 bytes per parameter for its compensation" if policy.update == "kahan" else f"seed {policy.update_seed}"
    native = "optimizer.step() over float32 values in its param_groups, rounded to bfloat16"
    return [
        *rows,
        PlanRow("update", policy.update, native, note=f"{kept}; no float32 master weights (4 bytes per parameter)"),
    ]


def device_row(device: torch.device, scope_device: bool) -> PlanRow:
    """Return the row on where models are created, and by which random generator."""
    if not scope_device:
        return PlanRow(
            "device", str(device), f"model.to({str(device)!r}) in prepare()", note="scope() changes no device"
        )
    note = "" if not traits(device).own_generator else (
        "models made in scope() are drawn from this device's random generator, so a seed gives other weights than "
        "model.to(device); backend_options={'torch': {'scope_device': False}} draws on the CPU"
    )  # fmt: skip
    native = f"model.to({str(device)!r}), torch.device({str(device)!r}) in scope()"
    return PlanRow("device", str(device), native, note=note)


def _native_row() -> PlanRow:
    return PlanRow(
        "native calls", "refused",
        "Tensor.register_hook on the unscaled loss, Optimizer.register_step_pre_hook, register_optimizer_step_pre_hook",
        note="loss.backward(), optimizer.step(), a GradScaler's calls and torch's clipping of scaled gradients while a "
        "scaled loss is pending; not seen: the backward pass of "
        "another loss after scaled_loss.backward(), and writes to .grad",
    )  # fmt: skip


def _recorded_row(mode: str, device: torch.device) -> PlanRow:
    """Return how steps that ``amp.record`` looks at run."""
    captured = traits(device).captures_graphs
    how = "a second CUDA graph" if captured else "as compiled"
    if captured and mode == "default":
        return PlanRow("compile.recorded steps", how, "forward hooks while it is captured")
    note = "amp.record(activations=True): uncompiled, because compiled code calls no hooks"
    return PlanRow("compile.recorded steps", how, "gradients are counted between compiled parts", note=note)


def _compile_rows(mode: str, device: torch.device, shared: str) -> list[PlanRow]:
    if mode == "off":
        return [PlanRow("compile", mode, "the function as it is")]
    if shared:
        return [PlanRow("compile", mode, "the function as it is", "no effect", shared)]
    inner = "torch.compile(fn)"
    note = "the optimizer's step runs uncompiled"
    if traits(device).captures_graphs:
        inner = f"torch.cuda.CUDAGraph of {inner if mode == 'max' else 'fn'}"
        note = "the whole step, once its shapes are known; tensors are copied in, other arguments are fixed"
    rows = [PlanRow("compile", mode, inner, note=note), _recorded_row(mode, device)]
    if mode == "max":
        note = "convolutional models only; set by compile='max' of the session"
        rows.append(PlanRow("layout", "channels last", "model.to(memory_format=torch.channels_last)", note=note))
    return rows


def _param_row(policy: Policy) -> PlanRow:
    if policy.param_dtype == "float32":
        return PlanRow("param_dtype", "float32", "parameters stay as they are", note="trainable float16 is refused")
    norms = "normalization layers float32" if policy.keep_norm_float32 else "normalization layers too"
    return PlanRow("param_dtype", policy.param_dtype, f"param.data.to(torch.{policy.param_dtype})", note=norms)


def _master_rows(spec: SessionSpec) -> list[PlanRow]:
    if not spec.master_weights:
        return []
    native = "float32 copies in optimizer.param_groups; torch._foreach_copy_ to the parameters after each step"
    return [PlanRow("master_weights", "float32", native, note="gradients add up, are unscaled and clipped in float32")]


def _scale_rows(spec: SessionSpec, device: torch.device) -> list[PlanRow]:
    scale = spec.loss_scale
    if not scale.enabled:
        return [PlanRow("loss_scale", "none", "loss.backward(); optimizer.step()", note="no finite check")]
    low, high = scale.scale_bounds
    native = (
        f"torch.amp.GradScaler({device.type!r}, init_scale={scale.first_scale:g}, "
        f"growth_factor={scale.growth_factor:g}, backoff_factor={scale.backoff_factor:g}, "
        f"growth_interval={scale.growth_interval})"
    )
    counted = f"hysteresis {scale.hysteresis}{' until the scale grows' if scale.keeps_hysteresis else ''}"
    bounds = PlanRow(
        "loss_scale.bounds", f"[{low:g}, {high:g}], {counted}", "Scaler.update", "emulated",
        "GradScaler has no bounds and no hysteresis",
    )  # fmt: skip
    return [PlanRow("loss_scale", str(scale), native), bounds]


def _accumulation_rows(spec: SessionSpec) -> list[PlanRow]:
    if spec.accumulate_steps == 1:
        return []
    native = f"(loss / {spec.accumulate_steps}).backward()"
    note = "gradients add up in the parameters' own; the last backward pass of a window ends it"
    return [PlanRow("accumulate_steps", str(spec.accumulate_steps), native, note=note)]


def _override_rows(policy: Policy, device: torch.device) -> list[PlanRow]:
    effect = "native" if policy.is_mixed else "no effect"
    found = [
        PlanRow(
            f"op_overrides.{op}", choice,
            f"torch.library kernel at {operations.key(device.type)}: {', '.join(operations.aten_names(op))}",
            effect, "" if policy.is_mixed else "there is no autocast region to act in",
        )
        for op, choice in policy.op_overrides.items()
    ]  # fmt: skip
    return found + [
        PlanRow(f"layer_overrides.{glob}", dtype, _layer_call(device, dtype, policy))
        for glob, dtype in policy.layer_overrides.items()
    ]


def _rnn_rows(policy: Policy, device: torch.device) -> list[PlanRow]:
    if not rnns_need_float32(policy, device.type):
        return []
    note = "torch's autocast would run recurrent layers in float16 there"
    return [PlanRow("nn.LSTM, nn.GRU, nn.RNN", "float32", _layer_call(device, "float32", policy), "emulated", note)]


def _layer_call(device: torch.device, dtype: str, policy: Policy) -> str:
    if policy.param_dtype != "float32":
        return f"layer.to(torch.{dtype}), inputs and outputs cast"
    if dtype == "float32":
        return f"torch.autocast({device.type!r}, enabled=False) around forward, inputs cast"
    return f"torch.autocast({device.type!r}, dtype=torch.{dtype}) around forward"


def _optimizer_row(index: int, optimizer: torch.optim.Optimizer, spec: SessionSpec, device: torch.device) -> PlanRow:
    name = type(optimizer).__name__
    if not spec.loss_scale.enabled:
        return PlanRow(f"optimizer.{index}", name, "optimizer.step()")
    if traits(device).reads_without_sync:
        return PlanRow(f"optimizer.{index}", name, "if not found_inf: optimizer.step()")
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        note = "skips in its kernel; the device is read until the first applied step only"
        return PlanRow(f"optimizer.{index}", f"{name}, fused", "optimizer.found_inf = …; optimizer.step()", note=note)
    note = "reads one flag from the device per step; fused=True avoids it"
    return PlanRow(f"optimizer.{index}", name, "if not found_inf.item(): optimizer.step()", note=note)
