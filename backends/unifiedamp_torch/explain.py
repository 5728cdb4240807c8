"""What the backend can do, and what a session's settings become in torch's calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import PRESETS, Capabilities, PlanRow, Policy, SessionSpec, Support, errors

from .device import devices as devices
from .device import tuning
from .precision import operations

OPTIONS = ("cache_enabled", "emulate", "scale_on_device", "scope_device")


def check_options(spec: SessionSpec) -> None:
    """Check ``backend_options.torch``.

    Raises:
        ConfigError: an unknown key, or a value that is not true or false.
    """
    spec.check_options(OPTIONS, "torch")
    for name, value in spec.options.items():
        if not isinstance(value, bool):
            raise errors.ConfigError(f"backend_options.torch.{name} must be true or false, got {value!r}")
    if spec.options.get("emulate") and spec.policy.compute_dtype != "float8":
        spec.warn(
            f"backend_options.torch.emulate has no effect under policy {str(spec.policy)!r}: it is for mixed_float8",
            errors.PolicyWarning,
        )


def capabilities(device: torch.device, emulate: bool) -> Capabilities:
    """Return what torch can do on ``device``, with reasons."""
    return Capabilities(str(device), devices.policy_support(device, emulate), _features(device), tuning.support(device))


def _features(device: torch.device) -> dict[str, Support]:
    try:
        operations.check(("matmul",), device.type)
        overrides = Support(True, "kernels at the autocast dispatch key")
    except errors.UnsupportedError as error:
        overrides = Support(False, str(error))
    if devices.looking_is_free(device):
        waits = Support(True, "the CPU is never waited for")
    else:
        waits = Support(True, "with a fused optimizer; others read one flag from the device per step")
    there = torch.distributed.is_available()
    ranks = Support(there, "found_inf is all-reduced over torch.distributed" if there else "built without distributed")
    return {
        "context_form": Support(True, "loss.backward()"),
        "compile": Support(True, "torch.compile; on CUDA devices the whole step in a CUDA graph"),
        "loss_scaling": Support(True, "a torch.amp.GradScaler"),
        "accumulation": Support(True, "gradients add up in .grad"),
        "several_optimizers": Support(True, "one scaler, each optimizer skips by itself"),
        "op_overrides": overrides,
        "layer_overrides": Support(True, "an autocast region around the layer's forward"),
        "master_weights": Support(True, "float32 copies in the optimizer's param_groups, in place of the parameters"),
        "float32_weights": Support(True, "by the names of state_dict"),
        "convert_model": Support(True, "a deep copy with parameters cast"),
        "float8": Support(True, devices.float8_support(device).reason),
        "several_devices": ranks,
        "no_device_wait": waits,
        "recording": Support(True, "forward hooks; on recorded steps, what is compiled runs uncompiled"),
        "kernel_profile": _kernel_profile(device),
        "shape_advice": Support(True, "Linear, convolutions, RNNs, MultiheadAttention"),
    }


def _kernel_profile(device: torch.device) -> Support:
    on_gpu = device.type == "cuda"
    return Support(on_gpu, "torch.profiler" if on_gpu else "there are no Tensor Cores on this device")


def check_policy(spec: SessionSpec, device: torch.device) -> None:
    """Refuse a policy that cannot run on ``device``; warn of one that cannot help.

    Raises:
        PolicyNotSupportedError: with the reason and the nearest policy that runs.
        UnsupportedError: an op override that torch does not have.
    """
    policy = spec.policy
    _check_pair(policy)
    for dtype in {policy.compute_dtype, *policy.layer_overrides.values()}:
        runs, helps = devices.dtype_support(device, dtype, spec.options.get("emulate", False))
        if not runs:
            raise errors.PolicyNotSupportedError(
                f"policy {str(policy)!r}: {dtype} does not run here ({runs.reason}); nearest that does: "
                f"{_nearest_running(device, dtype)}"
            )
        if not helps:
            spec.warn(f"policy {str(policy)!r} runs but cannot help on {device}: {helps.reason}", errors.NoGainWarning)
    operations.check(policy.op_overrides, device.type)
    if policy.op_overrides and not policy.is_mixed:
        spec.warn(
            f"op_overrides ({', '.join(policy.op_overrides)}) have no effect under policy {str(policy)!r}: they act in "
            "autocast, which only a mixed policy uses",
            errors.PolicyWarning,
        )


def check_region(session: Policy, region: Policy) -> None:
    """Refuse a region's policy that differs from the session's by float8 alone.

    Raises:
        UnsupportedError: torch.compile keys its graphs, and checkpointing its recomputing, by autocast's dtype, which
            is bfloat16 in both.
    """
    kinds = {session.compute_dtype, region.compute_dtype}
    if region.compute_dtype == "float8" != session.compute_dtype:
        raise errors.UnsupportedError(
            f"amp.autocast(policy={str(region)!r}): linear layers are made ready for float8 by amp.prepare, so float8 "
            "is a policy for the session"
        )
    if kinds == {"float8", "bfloat16"}:
        raise errors.UnsupportedError(
            f"amp.autocast(policy={str(region)!r}): a session of {session.name!r} cannot leave float8 for bfloat16 in "
            "a region, as torch.compile would not see the difference; name the layers in layer_overrides, or use "
            "amp.autocast(enabled=False)"
        )


def check_chosen(spec: SessionSpec, model: torch.nn.Module, chosen: Mapping[str, str]) -> None:
    """Warn of a model that has no layer for float8."""
    if all(chosen.values()):
        path, why = next(iter(chosen.items()), ("", "it has no torch.nn.Linear"))
        spec.warn(
            f"policy '{spec.policy}' runs nothing of {type(model).__name__} in float8: {path and path + ': '}{why}; "
            "amp.explain() lists the layers",
            errors.PolicyWarning,
        )


def _check_pair(policy: Any) -> None:
    if policy.is_mixed and policy.compute_dtype == "float32":
        raise errors.PolicyNotSupportedError(
            f"policy {str(policy)!r}: torch.autocast computes in float16 or bfloat16, so {policy.param_dtype} "
            f"parameters cannot be computed with in float32; nearest that runs: 'float32' or {policy.param_dtype!r}"
        )


def _nearest_running(device: torch.device, dtype: str) -> str:
    other = "mixed_float16" if dtype == "bfloat16" else "mixed_bfloat16"
    nearest = repr(other if devices.dtype_support(device, PRESETS[other].compute_dtype)[0] else "float32")
    if dtype == "float8":
        nearest += "; backend_options={'torch': {'emulate': True}} runs its numerics anywhere"
    return nearest


def rows(
    spec: SessionSpec, device: torch.device, cache: bool, optimizers: Sequence[Any], shared: str = ""
) -> list[PlanRow]:
    """Return the backend's rows of ``amp.explain()``; ``shared`` says why several processes share the step."""
    policy = spec.policy
    low = policy.is_mixed
    runs = f"dtype=torch.{policy.region_dtype}, cache_enabled={cache}" if low else "enabled=False"
    helps = devices.dtype_support(device, policy.compute_dtype, spec.options.get("emulate", False))[1]
    plan = [
        device_row(spec, device),
        PlanRow(
            "compute_dtype", policy.compute_dtype, f"torch.autocast({device.type!r}, {runs})",
            note=helps.reason if helps else f"runs but cannot help: {helps.reason}",
        ),
        _param_row(policy),
        *_master_rows(spec),
        PlanRow("output_dtype", policy.output_dtype, f"forward hook: output.to(torch.{policy.output_dtype})"),
        *_scale_rows(spec, device),
        *_override_rows(policy, device),
        *_rnn_rows(policy, device),
    ]  # fmt: skip
    plan += [_optimizer_row(index, each, spec, device) for index, each in enumerate(optimizers)]
    plan += _compile_rows(spec.compile_mode, device, shared)
    plan.append(_native_row())
    return plan


def device_row(spec: SessionSpec, device: torch.device) -> PlanRow:
    """Return the row on where models are made, and by which random generator."""
    if not spec.options.get("scope_device", True):
        return PlanRow(
            "device", str(device), f"model.to({str(device)!r}) in prepare()", note="scope() changes no device"
        )
    note = "" if device.type == "cpu" else (
        "models made in scope() are drawn from this device's random generator, so a seed gives other weights than "
        "model.to(device); backend_options={'torch': {'scope_device': False}} draws on the CPU"
    )  # fmt: skip
    native = f"model.to({str(device)!r}), torch.device({str(device)!r}) in scope()"
    return PlanRow("device", str(device), native, note=note)


def _native_row() -> PlanRow:
    return PlanRow(
        "native calls", "refused", "Tensor.register_hook on the unscaled loss, Optimizer.register_step_pre_hook",
        note="loss.backward() and optimizer.step() while a scaled loss is pending; not seen: the backward pass of "
        "another loss after scaled_loss.backward(), and writes to .grad",
    )  # fmt: skip


def _compile_rows(mode: str, device: torch.device, shared: str) -> list[PlanRow]:
    if mode == "off":
        return [PlanRow("compile", mode, "the function as it is")]
    if shared:
        return [PlanRow("compile", mode, "the function as it is", "no effect", shared)]
    inner = "torch.compile(fn)"
    note = "the optimizer's step runs uncompiled"
    if device.type == "cuda":
        inner = f"torch.cuda.CUDAGraph of {inner if mode == 'max' else 'fn'}"
        note = "the whole step, once its shapes are known; tensors are copied in, other arguments are fixed"
    rows = [PlanRow("compile", mode, inner, note=note)]
    if mode == "max":
        note = "convolutional models only; set by compile='max' of the session"
        rows.append(PlanRow("layout", "channels last", "model.to(memory_format=torch.channels_last)", note=note))
    return rows


def _param_row(policy: Any) -> PlanRow:
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
    bounds = PlanRow(
        "loss_scale.bounds", f"[{low:g}, {high:g}], hysteresis {scale.hysteresis}", "Scaler.update", "emulated",
        "GradScaler has no bounds and no hysteresis",
    )  # fmt: skip
    return [PlanRow("loss_scale", str(scale), native), bounds]


def _override_rows(policy: Any, device: torch.device) -> list[PlanRow]:
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


def _rnn_rows(policy: Any, device: torch.device) -> list[PlanRow]:
    if device.type != "cuda" or not policy.is_mixed or policy.region_dtype != "bfloat16":
        return []
    note = "torch's autocast would run recurrent layers in float16 there"
    return [PlanRow("nn.LSTM, nn.GRU, nn.RNN", "float32", _layer_call(device, "float32", policy), "emulated", note)]


def _layer_call(device: torch.device, dtype: str, policy: Any) -> str:
    if policy.param_dtype != "float32":
        return f"layer.to(torch.{dtype}), inputs and outputs cast"
    if dtype == "float32":
        return f"torch.autocast({device.type!r}, enabled=False) around forward, inputs cast"
    return f"torch.autocast({device.type!r}, dtype=torch.{dtype}) around forward"


def _optimizer_row(index: int, optimizer: Any, spec: SessionSpec, device: torch.device) -> PlanRow:
    name = type(optimizer).__name__
    if not spec.loss_scale.enabled:
        return PlanRow(f"optimizer.{index}", name, "optimizer.step()")
    if devices.looking_is_free(device):
        return PlanRow(f"optimizer.{index}", name, "if not found_inf: optimizer.step()")
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        note = "skips in its kernel; the device is read until the first applied step only"
        return PlanRow(f"optimizer.{index}", f"{name}, fused", "optimizer.found_inf = …; optimizer.step()", note=note)
    note = "reads one flag from the device per step; fused=True avoids it"
    return PlanRow(f"optimizer.{index}", name, "if not found_inf.item(): optimizer.step()", note=note)
