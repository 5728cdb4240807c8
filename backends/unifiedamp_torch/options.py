"""``backend_options.torch``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch.distributed as dist

from unifiedamp.backend import SessionSpec, errors


@dataclass(frozen=True)
class TorchOptions:
    """The settings of this backend alone.

    Attributes:
        cache_enabled: keep autocast's casts of parameters within a region. None: unless torch's cache loses gradients.
        emulate: run the numerics of float8 on any device.
        float8_min_features: the smallest in_features and out_features of linear layers that run in float8; smaller ones
            may lose more to casts than their products gain.
        float8_all_gather: ``fully_shard`` gathers the weights of layers with one float8 scale in float8: a quarter of
            the traffic of float32. What reads such a weight outside its layer sees float8 numbers.
        scale_on_device: keep the loss scale in device scalars on a CPU too, as on a GPU; for testing that path.
        scope_device: ``amp.scope()`` creates tensors on the session's device. False leaves them where torch creates
            them, and ``amp.prepare`` moves the models.
        process_group: the ranks that train together, a ``torch.distributed.ProcessGroup``; False: this rank trains
            alone. None: the group of ``DistributedDataParallel``, the device meshes of DTensors, and else all ranks.
        shards_reduce_once: models of ``fully_shard`` reduce gradients once per accumulation window, and keep whole ones
            on each rank until then. False reduces after each backward pass, which takes less memory.
    """

    cache_enabled: bool | None = None
    emulate: bool = False
    float8_min_features: int = 0
    float8_all_gather: bool = False
    scale_on_device: bool = False
    scope_device: bool = True
    process_group: Any = None
    shards_reduce_once: bool = True

    @classmethod
    def read(cls, spec: SessionSpec) -> TorchOptions:
        """Return the options of a session.

        Raises:
            ConfigError: an unknown key, or a value that is not true or false.
        """
        spec.check_options([each.name for each in fields(cls)], "torch")
        for name, value in spec.options.items():
            if name == "process_group":
                _check_group(value)
            elif name == "float8_min_features":
                if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                    raise errors.ConfigError(
                        f"backend_options.torch.float8_min_features must be a whole number of 0 or more, got {value!r}"
                    )
            elif not isinstance(value, bool):
                raise errors.ConfigError(f"backend_options.torch.{name} must be true or false, got {value!r}")
        options = cls(**spec.options)
        if options.emulate and all(policy.compute_dtype != "float8" for policy in spec.policies):
            spec.warn(
                f"backend_options.torch.emulate has no effect under policy {str(spec.policy)!r}: it is for "
                "mixed_float8",
                errors.PolicyWarning,
            )
        _check_all_gather(spec, options)
        return options


def _check_all_gather(spec: SessionSpec, options: TorchOptions) -> None:
    """Refuse to gather weights in float8 where they have no single scale, or not always.

    Raises:
        ConfigError: another policy than one of float8 with a scale for each tensor, or a schedule.
    """
    if not options.float8_all_gather:
        return
    recipe = spec.policy.float8 if spec.policy.compute_dtype == "float8" else None
    if len(spec.policies) > 1 or recipe is None or recipe.scaling not in ("tensorwise", "delayed"):
        raise errors.ConfigError(
            "backend_options.torch.float8_all_gather needs policy 'mixed_float8' with recipe 'tensorwise' or 'delayed' "
            f"throughout, got {str(spec.policy)!r}{' and a schedule' if len(spec.policies) > 1 else ''}"
        )


def _check_group(value: Any) -> None:
    """Refuse what is no process group of this rank.

    Raises:
        ConfigError: another kind of object, or a group that this rank is not in.
    """
    if value is False:
        return
    if value is dist.GroupMember.NON_GROUP_MEMBER:
        raise errors.ConfigError(
            "backend_options.torch.process_group: this rank is not in the group (new_group returned NON_GROUP_MEMBER); "
            "name a group that has every rank that trains, or False for a rank that trains alone"
        )
    if not isinstance(value, dist.ProcessGroup):
        raise errors.ConfigError(
            "backend_options.torch.process_group must be a torch.distributed.ProcessGroup, or False, got "
            f"{type(value).__name__}"
        )
