"""What TensorFlow can do on a device, with reasons."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from unifiedamp.backend import PRESETS, Capabilities, PlanRow, SessionSpec, Support, errors

from .device import tuning
from .device.devices import Device
from .training.checks import NO_FLOAT8

GOOD = Support(True)
MASTERS = "float32 variables of the optimizer, which is built over them; on one device"
NO_CORES = "there are no Tensor Cores on this device"
TENSOR_CORES, BFLOAT16_CORES = (7, 0), (8, 0)


def device_of(asked: str | None) -> Device:
    """Return the device asked for, or the first GPU, or the CPU.

    Raises:
        errors.ConfigError: TensorFlow sees no such device.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if asked is None:
        return _gpu(0, gpus) if gpus else Device("cpu", "/CPU:0")
    kind, _, index = asked.lower().replace("cuda", "gpu").replace("(", ":").replace(")", "").strip("/").partition(":")
    number = int(index) if index.isdigit() else 0
    if kind == "cpu" and (not index or index == "0"):
        return Device("cpu", "/CPU:0")
    if kind == "gpu" and number < len(gpus):
        return _gpu(number, gpus)
    raise errors.ConfigError(
        f"device {asked!r}: TensorFlow sees no such device here (it sees: {', '.join(['cpu', *_names(gpus)])})"
    )


def _names(gpus: list[object]) -> list[str]:
    return [f"gpu:{index}" for index in range(len(gpus))]


def _gpu(index: int, gpus: list[object]) -> Device:
    details = tf.config.experimental.get_device_details(gpus[index])
    return Device(f"gpu:{index}", f"/GPU:{index}", details.get("compute_capability"))


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags as Linux names them; empty where they cannot be read."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def bfloat16_helps(device: Device) -> Support:
    """Whether bfloat16 is faster than float32."""
    if device.is_cpu:
        has = cpu_flags() & {"avx512_bf16", "amx_bf16", "avx_ne_convert"}
        return Support(bool(has), f"oneDNN uses {', '.join(sorted(has))}" if has else "the CPU has no bfloat16 units")
    ok = device.compute_capability is None or device.compute_capability >= BFLOAT16_CORES
    return Support(ok, "bfloat16 Tensor Cores" if ok else f"no bfloat16 units at {device.compute_capability}")


def float16_helps(device: Device) -> Support:
    """Whether float16 is faster than float32."""
    if device.is_cpu:
        return Support(False, "TensorFlow has no float16 units on CPU; convolutions may be a hundred times slower")
    ok = device.compute_capability is None or device.compute_capability >= TENSOR_CORES
    return Support(ok, "float16 Tensor Cores" if ok else f"no Tensor Cores at {device.compute_capability}")


def rewrites(device: Device) -> Support:
    """Whether the graph rewrite changes graphs: to float16 on a GPU, to bfloat16 on a CPU that has what it takes."""
    if not device.is_cpu:
        return Support(True, "to float16")
    if not cpu_flags() or cpu_flags() & {"avx512f", "avx_ne_convert"}:
        return Support(True, "to bfloat16, by oneDNN")
    return Support(
        False,
        "TensorFlow's rewrite to bfloat16 leaves graphs alone on CPUs without AVX512 or AVX-NE-CONVERT, and the one to "
        "float16 needs a GPU",
    )


def default_policy(device: Device) -> tuple[str, str]:
    """Return the preset the device does best, and why."""
    helps = bfloat16_helps(device)
    if helps:
        return "mixed_bfloat16", helps.reason
    float16 = float16_helps(device)
    return ("mixed_float16", float16.reason) if float16 else ("float32", helps.reason)


def policy_support(device: Device, emulate: bool) -> Mapping[str, Support]:
    """Return preset → whether it runs, and whether it helps; float8 emulated or not."""
    reasons = {"float32": GOOD}
    for name, preset in PRESETS.items():
        if preset.compute_dtype == "float8":
            reason = _helps("float8", device).reason
            reasons[name] = Support(True, reason, False) if emulate else Support(False, NO_FLOAT8)
        elif preset.compute_dtype != "float32":
            helps = _helps(preset.compute_dtype, device)
            reasons[name] = Support(True, helps.reason, helps.ok)
    return reasons


def warn_without_gain(spec: SessionSpec, device: Device) -> None:
    """Warn of a policy that runs and cannot help."""
    dtype = spec.policy.compute_dtype
    helps = GOOD if dtype == "float32" else _helps(dtype, device)
    if not helps:
        spec.warn(
            f"policy {str(spec.policy)!r} runs on {device.name} without gain in speed: {helps.reason}; "
            f"this device does {default_policy(device)[0]!r} best",
            errors.NoGainWarning,
        )


def _helps(dtype: str, device: Device) -> Support:
    if dtype == "float8":
        return Support(True, "emulated, for its numerics alone")
    return float16_helps(device) if dtype == "float16" else bfloat16_helps(device)


def capabilities(device: Device, op_overrides: Support, emulate: bool) -> Capabilities:
    """Return the answers for a device; ``emulate`` as in ``backend_options``."""
    features = {
        "context_form": GOOD,
        "compile": Support(True, "tf.function, by XLA with compile='max' or backend_options.tensorflow.xla"),
        "loss_scaling": GOOD,
        "accumulation": GOOD,
        "several_optimizers": GOOD,
        "op_overrides": op_overrides,
        "layer_overrides": Support(True, "a dtype policy per layer"),
        "float8": Support(True, f"emulated by backend_options.tensorflow.emulate; {NO_FLOAT8}"),
        "master_weights": Support(True, MASTERS),
        "float32_weights": Support(True, "by layer path and variable name"),
        "convert_model": Support(True, "a clone whose variables are cast"),
        "several_devices": Support(True, "replicas of a MirroredStrategy sum their gradients before one looks at them"),
        "no_device_wait": Support(
            True, "steps compiled by XLA never wait; tf.function reads one flag for tf.cond, as an eager step does"
        ),
        "recording": Support(True, "recorded steps of compiled loops have a trace of their own"),
        "kernel_profile": Support(not device.is_cpu, NO_CORES if device.is_cpu else "tf.profiler"),
        "shape_advice": Support(True, "Dense, convolutions, RNN cells, MultiHeadAttention"),
    }
    return Capabilities(device.name, policy_support(device, emulate), features, tuning.support(device))


def explain(spec: SessionSpec, device: Device) -> list[PlanRow]:
    """Return the rows on loss scaling, compiling and what the device gains."""
    rows = [*_master_rows(spec), _scale_row(spec), *_observer_rows(spec)]
    if spec.accumulate_steps > 1:
        rows.append(
            PlanRow("accumulate_steps", str(spec.accumulate_steps), "tf.Variable accumulators", "emulated",
                    "kept on the device, so that micro-steps may be separate compiled calls")
        )  # fmt: skip
    xla = tuning.by_xla(spec, spec.compile_mode)
    note = "each new shape is compiled anew" if xla else "a second shape is traced with its size left open"
    rows.append(PlanRow("compile", spec.compile_mode, f"tf.function(step, jit_compile={xla or None})", note=note))
    rows.append(PlanRow("compile of model.fit", "Keras's own", "model.compile(..., jit_compile=True) for XLA"))
    dtype = spec.policy.compute_dtype
    if dtype not in ("float32", "float8"):
        helps = _helps(dtype, device)
        rows.append(PlanRow("speed", dtype, device.tf_name, "native" if helps else "no effect", helps.reason))
    return rows


def _master_rows(spec: SessionSpec) -> list[PlanRow]:
    if not spec.master_weights:
        return []
    note = "Keras has none of its own; gradients add up, are unscaled and clipped in float32"
    return [PlanRow("master_weights", "float32", "optimizer.add_variable; variable.assign(master)", "emulated", note)]


def _observer_rows(spec: SessionSpec) -> list[PlanRow]:
    if not spec.loss_scale.enabled:
        return []
    note = (
        "told in eager loops, amp.compile and the fit of prepared models; in a tf.function of your own when a step is "
        "skipped or the scale grows, not under XLA or on several replicas: use amp.compile there"
    )
    return [PlanRow("observers and exhaustion", "told", "model.train_function, tf.py_function", "emulated", note)]


def _scale_row(spec: SessionSpec) -> PlanRow:
    if not spec.loss_scale.enabled:
        return PlanRow("scaler", "none", "optimizer.apply_gradients(...)", note="no scaling and no finite check")
    native = "tape.gradient(output_gradients=scale), tf.math.is_finite, tf.cond(apply, skip)"
    return PlanRow(
        "scaler", spec.loss_scale.kind, native, "emulated", "Keras's own has no floor, ceiling or hysteresis"
    )
