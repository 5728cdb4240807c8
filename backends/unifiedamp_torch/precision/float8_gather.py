"""The all-gather of ``fully_shard`` in float8: each rank casts its shard of a weight by the scale of the whole weight.

The scales of all layers are set at once, from one all-reduce of their largest magnitudes, where the first weight is
gathered after an update. ``fully_shard`` asks the sharded tensor what to gather (``fsdp_pre_all_gather``,
``fsdp_post_all_gather``; torchao's float8 all-gather uses the same hooks).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..distributed.ranks import reduce_over
from ..distributed.shard_windows import sharded_parameters
from .float8 import keep
from .float8_casts import E4M3, LARGEST_SCALE
from .float8_scales import LayerScales
from .gathered_weight import GatheredWeight

_LARGEST = torch.finfo(E4M3).max


@dataclass
class ShardedWeight:
    """What one rank has of a weight.

    Attributes:
        held: what ``fully_shard`` keeps of the parameter.
        scales: of delayed scaling; else None.
        all: the weights whose scales are set together.
        scale, unscale: float32 of shape (1,), of the whole weight.
    """

    held: Any
    scales: LayerScales | None
    all: GatheredWeights
    scale: torch.Tensor
    unscale: torch.Tensor
    _version: int = -1

    @property
    def shard(self) -> torch.Tensor:
        """The sharded numbers of this rank, of shape (rows, inputs)."""
        return self.held.sharded_param._local_tensor  # type: ignore[no-any-return]  # torch leaves it untyped

    def note(self) -> None:
        """Note that the scales are those of the present weight."""
        weight = self.held.sharded_param
        self._version = weight._version

    def noted(self) -> bool:
        """Return whether the weight was not written to since."""
        weight = self.held.sharded_param
        return self._version == weight._version  # type: ignore[no-any-return]  # torch leaves it untyped

    def attach(self) -> None:
        """Gather in float8 from now on."""
        self.shard.__dict__.update(fsdp_pre_all_gather=self.before, fsdp_post_all_gather=self.after)
        self.held._init_extensions()

    def detach(self) -> None:
        """Gather in the parameter's dtype again, as before the first all-gather."""
        for name in ("fsdp_pre_all_gather", "fsdp_post_all_gather"):
            self.shard.__dict__.pop(name, None)
        self.held.all_gather_outputs = []
        self.held.__dict__.pop("_unsharded_param", None)
        self.held._init_extensions()

    def before(self, mesh: Any, size: Any, _stride: Any, _module: Any, _policy: Any) -> Any:
        """Return what this rank gathers: its rows in float8, filled up to those of the other ranks."""
        if not self.all.fresh or not self.noted():
            self.all.set_scales()
        low = (self.shard * self.scale).clamp(-_LARGEST, _LARGEST).to(E4M3).view(torch.uint8)
        missing = -(-size[0] // mesh.size()) - len(low)
        return (torch.nn.functional.pad(low, (0, 0, 0, missing)) if missing else low,), None

    def after(
        self, gathered: Sequence[torch.Tensor], _metadata: Any, dtype: torch.dtype, *, out: torch.Tensor | None = None
    ) -> Any:
        """Return the whole weight and the memory that ``fully_shard`` may free; later all-gathers write to that."""
        if out is not None:
            return None
        return GatheredWeight(gathered[0].view(E4M3), self.unscale, dtype), tuple(gathered)


class GatheredWeights:
    """The weights of a session that are gathered in float8.

    Attributes:
        fresh: the scales are those of the present weights.
    """

    def __init__(self) -> None:
        self._all: list[ShardedWeight] = []
        self.fresh = False

    def __len__(self) -> int:
        return len(self._all)

    def add(
        self, model: torch.nn.Module, layers: Mapping[str, torch.nn.Module], scales: Mapping[str, LayerScales]
    ) -> list[Callable[[], None]]:
        """Gather the weights of layers in float8, where ``fully_shard`` holds them; return what undoes it.

        Args:
            model: that holds them.
            layers: name → linear layer.
            scales: name → scales of delayed scaling.
        """
        held = {id(each.sharded_param): each for each in sharded_parameters([model]) if _takes(each)}
        added = []
        for name, module in layers.items():
            known = held.get(id(module._parameters.get("weight")))
            if known is not None:
                added.append(self._made(known, scales.get(name)))
                added[-1].attach()
        return [each.detach for each in added]

    def _made(self, held: Any, scales: LayerScales | None) -> ShardedWeight:
        with torch.inference_mode(False):
            scale, unscale = (
                torch.ones(1, dtype=torch.float32, device=held.device) for _ in range(2)
            )  # cuBLAS reads aligned scales
        self._all.append(ShardedWeight(held, scales, self, scale, unscale))
        return self._all[-1]

    def drop(self) -> None:
        """The weights may have changed."""
        self.fresh = False

    def restore(self, fresh: bool) -> None:
        """Note whether the scales are those of the present weights, after a replayed step."""
        self.fresh = fresh
        for each in self._all if fresh else ():
            each.note()

    @torch.no_grad()
    def set_scales(self) -> None:
        """Set the scales by the present weights, or by histories where there are some; one all-reduce per mesh."""
        with torch.inference_mode(False):
            for group, weights in self._by_group():
                amaxes = torch.cat([_amax(each.shard) for each in weights])
                reduce_over(amaxes, "max", group)
                present = (_LARGEST / amaxes).clamp(max=LARGEST_SCALE)
                for each, amax, scale in zip(weights, amaxes[:, None], present[:, None], strict=True):
                    _set(each, amax, scale)
        self.fresh = True

    def _by_group(self) -> list[tuple[Any, list[ShardedWeight]]]:
        found: dict[int, tuple[Any, list[ShardedWeight]]] = {}
        for each in self._all:
            group = each.held.mesh_info.shard_process_group
            found.setdefault(id(group), (group, []))[1].append(each)
        return list(found.values())


def _set(weight: ShardedWeight, amax: torch.Tensor, scale: torch.Tensor) -> None:
    if weight.scales is not None:
        known = weight.scales.now()
        keep(known.weight_amax, amax)
        scale = scale if known.weight is None else known.weight
    weight.scale.copy_(scale)
    # Clamping makes an inf finite; the inverse scale tells all ranks of it instead.
    weight.unscale.copy_(torch.where(amax.isfinite(), scale.reciprocal(), torch.nan))
    weight.note()


def _amax(shard: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude, float32 of shape (1,): 0 without numbers, inf of a nan, which reductions lose."""
    if not shard.numel():
        return torch.zeros(1, dtype=torch.float32, device=shard.device)
    amax = shard.abs().amax().float().reshape(1)
    return torch.where(amax.isfinite(), amax, torch.inf)


def _takes(held: Any) -> bool:
    """Return whether a parameter can be gathered in float8: sharded by rows alone, on the device, of one layer, not
    gathered before, and not kept in other parts after the forward pass.
    """
    mesh, after = held.mesh_info, held.post_forward_mesh_info
    return (
        hasattr(mesh, "shard_process_group")
        and getattr(getattr(held, "fsdp_placement", None), "dim", None) == 0
        and not held.is_dtensor
        and not held.offload_to_cpu
        and (after is None or after is mesh)
        and not held._module_info.shared_modules
        and not hasattr(held, "_unsharded_param")
    )
