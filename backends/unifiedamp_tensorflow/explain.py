"""The rows of ``amp.explain()`` on master weights, loss scaling, compiling and the device's gain."""

from __future__ import annotations

from collections.abc import Iterator

from unifiedamp.backend import PlanRow, SessionSpec

from .device.hardware import dtype_gain
from .device.selection import DeviceInfo
from .device.tuning import compiles_with_xla


def plan_rows(spec: SessionSpec, device: DeviceInfo) -> Iterator[PlanRow]:
    """Yield the rows that no role adds itself."""
    if spec.master_weights:
        yield _master_row()
    if spec.policy.state_dtype is not None:
        native = "the optimizer's variables; float32 values in their place in optimizer.update_step"
        low = spec.policy.state_dtype == "bfloat16"
        size = "2 bytes" if low else "1 byte and a float32 scale for 256 numbers"
        note = f"{size} per number in place of 4, rounded stochastically (seed {spec.policy.update_seed})"
        yield PlanRow("state_dtype", spec.policy.state_dtype, native, "emulated", note)
    if spec.policy.update is not None:
        yield _update_row(spec)
    yield _scale_row(spec)
    if spec.loss_scale.enabled:
        yield _observer_row()
    if spec.accumulate_steps > 1:
        note = "kept on the device, so that micro-steps may be separate compiled calls"
        yield PlanRow("accumulate_steps", str(spec.accumulate_steps), "tf.Variable accumulators", "emulated", note)
    yield _compile_row(spec)
    yield PlanRow("compile of model.fit", "Keras's own", "model.compile(..., jit_compile=True) for XLA")
    dtype = spec.policy.compute_dtype
    if dtype not in ("float32", "float8") and not spec.policy.emulate:
        gain = dtype_gain(dtype, device)
        yield PlanRow("speed", dtype, device.tf_name, "native" if gain else "no effect", gain.reason)


def _master_row() -> PlanRow:
    note = "Keras has none; gradients are accumulated, unscaled and clipped in float32"
    return PlanRow("master_weights", "float32", "optimizer.add_variable; variable.assign(master)", "emulated", note)


def _update_row(spec: SessionSpec) -> PlanRow:
    policy = spec.policy
    kept = "2 bytes per parameter for its compensation" if policy.update == "kahan" else f"seed {policy.update_seed}"
    native = "optimizer.update_step on a float32 value in place of each bfloat16 variable"
    note = f"{kept}; no float32 master weights (4 bytes per parameter)"
    return PlanRow("update", str(policy.update), native, "emulated", note)


def _scale_row(spec: SessionSpec) -> PlanRow:
    if not spec.loss_scale.enabled:
        return PlanRow("scaler", "none", "optimizer.apply_gradients(...)", note="no scaling and no finite check")
    native = "tape.gradient(output_gradients=scale), tf.math.is_finite, tf.cond(apply, skip)"
    note = "Keras's own has no floor, ceiling or hysteresis"
    return PlanRow("scaler", spec.loss_scale.kind, native, "emulated", note)


def _observer_row() -> PlanRow:
    note = (
        "reported in eager loops, amp.compile and the fit of prepared models; in your own tf.function when a step is "
        "skipped or the scale grows, not under XLA or on several replicas: use amp.compile there"
    )
    return PlanRow("observers and exhaustion", "reported", "model.train_function, tf.py_function", "emulated", note)


def _compile_row(spec: SessionSpec) -> PlanRow:
    xla = compiles_with_xla(spec, spec.compile_mode)
    xla_note = "each new shape is compiled anew; over several replicas, XLA compiles forward and backward of each"
    note = xla_note if xla else "a second shape is traced with its size left open"
    return PlanRow("compile", spec.compile_mode, f"tf.function(step, jit_compile={xla or None})", note=note)
