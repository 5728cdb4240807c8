"""What the backend can do on a device, each answer with a reason, and the policies that it refuses."""

from __future__ import annotations

import torch

from unifiedamp.backend import PRESETS, Capabilities, Policy, SessionSpec, Support, errors

from .device import tuning
from .device.kinds import traits
from .device.selection import dtype_support, float8_support, policy_support
from .precision import emulation, operations


def capabilities(device: torch.device, emulate: bool) -> Capabilities:
    """Return what torch can do on ``device``, without the features of optional roles."""
    return Capabilities(str(device), policy_support(device, emulate), _features(device), tuning.support(device))


def _features(device: torch.device) -> dict[str, Support]:
    return {
        "context_form": Support(True, "loss.backward()"),
        "loss_scaling": Support(True, "a torch.amp.GradScaler"),
        "accumulation": Support(True, "gradients add up in .grad"),
        "several_optimizers": Support(True, "one scaler, each optimizer skips by itself"),
        "op_overrides": _op_overrides(device),
        "layer_overrides": Support(True, "an autocast region around the layer's forward"),
        "master_weights": Support(True, "float32 copies in the optimizer's param_groups, in place of the parameters"),
        "emulation": _op_overrides(device),
        "float8": Support(True, float8_support(device).reason),
        "reduce_dtype": Support(True, "a comm hook of DistributedDataParallel; the reduce_dtype of fully_shard"),
        "no_device_wait": _no_device_wait(device),
    }


def _op_overrides(device: torch.device) -> Support:
    try:
        operations.check(("matmul",), device.type)
    except errors.UnsupportedError as error:
        return Support(False, str(error))
    return Support(True, "kernels at the autocast dispatch key")


def _no_device_wait(device: torch.device) -> Support:
    if traits(device).reads_without_sync:
        return Support(True, "the CPU is never waited for")
    return Support(True, "with a fused optimizer; others read one flag from the device per step")


# -- policies ----------------------------------------------------------------------------------------------------------


def check_policy(spec: SessionSpec, device: torch.device, emulate: bool) -> None:
    """Refuse a policy that cannot run on ``device``; warn of one that is no faster there.

    Raises:
        PolicyNotSupportedError: with the reason and the nearest policy that runs.
        UnsupportedError: an op override that torch does not have.
    """
    policy = spec.policy
    _check_pair(policy)
    if policy.emulate:
        operations.check(emulation.PRODUCTS, device.type, f"policy {str(policy)!r}: emulated products")
    for dtype in set() if policy.emulate else {policy.compute_dtype, *policy.layer_overrides.values()}:
        runs, helps = dtype_support(device, dtype, emulate)
        if not runs:
            raise errors.PolicyNotSupportedError(
                f"policy {str(policy)!r}: {dtype} does not run here ({runs.reason}); nearest that does: "
                f"{_nearest_running(device, dtype, policy)}"
            )
        if not helps:
            spec.warn(f"policy {str(policy)!r} runs but cannot help on {device}: {helps.reason}", errors.NoGainWarning)
    if policy.compute_dtype == "float8" and not (emulate or policy.emulate):
        _check_recipe(policy, device)
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
    if session.compute_dtype == region.compute_dtype == "float8" and session.float8 != region.float8:
        raise errors.UnsupportedError(
            f"amp.autocast(policy={str(region)!r}): linear layers are made ready for recipe {str(session.float8)!r} by "
            "amp.prepare, so the recipe is the session's"
        )
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


def _check_recipe(policy: Policy, device: torch.device) -> None:
    """Refuse a float8 recipe for whose scales the device has no products.

    Raises:
        PolicyNotSupportedError: with the nearest recipe that runs.
    """
    answer = traits(device).float8_recipe(device, policy.recipe)
    if answer:
        return
    finer = [name for name in ("rowwise", "tensorwise") if traits(device).float8_recipe(device, name)]
    nearest = policy.replace(recipe=next(iter(finer), "tensorwise"))
    raise errors.PolicyNotSupportedError(
        f"policy {str(policy)!r}: recipe {policy.float8.name!r} does not run here ({answer.reason}); nearest that "
        f"does: {str(nearest)!r}; {str(policy.replace(emulate=True))!r} runs its numerics anywhere"
    )


def _check_pair(policy: Policy) -> None:
    if policy.is_mixed and policy.compute_dtype == "float32":
        raise errors.PolicyNotSupportedError(
            f"policy {str(policy)!r}: torch.autocast computes in float16 or bfloat16, so {policy.param_dtype} "
            f"parameters cannot be computed with in float32; nearest that runs: 'float32' or {policy.param_dtype!r}"
        )


def _nearest_running(device: torch.device, dtype: str, policy: Policy) -> str:
    other = "mixed_float16" if dtype == "bfloat16" else "mixed_bfloat16"
    nearest = repr(other if dtype_support(device, PRESETS[other].compute_dtype)[0] else "float32")
    if dtype == "float8":
        nearest += f"; {str(policy.replace(emulate=True))!r} runs its numerics anywhere"
    return nearest
