"""Modules that run in another dtype than the rest of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from unifiedamp.backend import Policy, errors, match_layers

from ..device.kinds import traits
from ..layer_paths import modules_by_path
from .autocast import Region, in_float32_layer
from .casts import DTYPES, cast
from .emulation import op_choices

_NORMS: tuple[type, ...] = tuple(
    getattr(torch.nn, name)
    for name in (
        "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "InstanceNorm1d", "InstanceNorm2d",
        "InstanceNorm3d", "LayerNorm", "GroupNorm", "RMSNorm",
    )
    if hasattr(torch.nn, name)
)  # fmt: skip


class Forward:
    """A module's ``forward``, replaced on the instance until :meth:`remove`. Models stay picklable.

    Args:
        module: whose forward is replaced.

    Attributes:
        removed: only passes calls on, because another forward has been put around this one since.
    """

    removed = False

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before = module.__dict__.get("forward")
        module.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        return self.plain(*args, **kwargs)

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward."""
        if self._before is not None:
            return self._before(*args, **kwargs)
        return type(self._module).forward(self._module, *args, **kwargs)

    def remove(self) -> None:
        """Restore the module's own forward."""
        if self._module.__dict__.get("forward") is not self:
            self.removed = True
        elif self._before is not None:
            self._module.forward = self._before
        else:
            del self._module.forward


class LayerForward(Forward):
    """A module's ``forward`` inside a dedicated region, with inputs and outputs cast.

    Args:
        module: whose forward is replaced on the instance; :meth:`remove` restores it.
        region: the autocast region that the layer runs in.
        inputs, outputs: dtype that floating-point inputs and outputs are cast to; None leaves them.
        always: run so outside an autocast region as well.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        region: Region,
        inputs: torch.dtype | None,
        outputs: torch.dtype | None,
        always: bool,
    ) -> None:
        super().__init__(module)
        self._region = region
        self._device = region.device
        self._inputs = inputs
        self._outputs = outputs
        self._always = always

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer."""
        inside = torch.is_autocast_enabled(self._device) or in_float32_layer(self._device)
        if self.removed or not (self._always or inside):
            return self.plain(*args, **kwargs)
        if self._inputs is not None:
            args, kwargs = cast(args, self._inputs), cast(kwargs, self._inputs)
        with self._region:
            output = self.plain(*args, **kwargs)
        return output if self._outputs is None else cast(output, self._outputs)


def layer_dtypes(model: torch.nn.Module, policy: Policy, device_type: str = "cpu") -> dict[str, str]:
    """Return layer path → dtype, where it is not the policy's own.

    Recurrent layers that autocast would run in float16 stay in float32 unless they are named.

    Raises:
        PolicyError: two globs match one layer, or a glob matches none.
    """
    paths = {path: module for path, module in modules_by_path(model).items() if path}
    chosen = match_layers(policy.layer_overrides, paths) if policy.layer_overrides else {}
    if policy.param_dtype != "float32" and policy.keep_norm_float32:
        norms = {path: "float32" for path, module in paths.items() if isinstance(module, _NORMS)}
        chosen = norms | chosen
    if rnns_need_float32(policy, device_type):
        rnns = [path for path, module in paths.items() if isinstance(module, torch.nn.RNNBase)]
        chosen |= {path: "float32" for path in rnns if dtype_at(path, chosen) is None}
    return chosen


def rnns_need_float32(policy: Policy, device_type: str) -> bool:
    """Return whether recurrent layers must be kept in float32: autocast would run them in float16, without the loss
    scale that float16 needs.
    """
    return traits(device_type).casts_rnns_to_float16 and policy.is_mixed and policy.region_dtype == "bfloat16"


def wrap_layers(
    model: torch.nn.Module, dtypes: Mapping[str, str], policy: Policy, device_type: str, cache_enabled: bool
) -> list[Callable[[], None]]:
    """Run the named layers in their dtypes; return what undoes it, to be called in reverse."""
    modules = modules_by_path(model)
    pure = policy.param_dtype != "float32"
    alone = not policy.is_mixed
    undo: list[Callable[[], None]] = []
    for path, dtype in dtypes.items():
        low, around = dtype != "float32", dtype_at(path.rpartition(".")[0], dtypes)
        casts = not alone or (low and (not pure or policy.emulate))
        region = Region(device_type, DTYPES[dtype] if casts else None, cache_enabled, op_choices(policy))
        # Where what is around the layer runs without autocast, nothing else converts the dtypes back.
        converts = alone or around == "float32"
        layer = LayerForward(
            modules[path],
            region,
            inputs=DTYPES[dtype] if pure or not low else None,
            outputs=DTYPES[around or policy.compute_dtype] if converts else None,
            always=alone,
        )
        undo.append(layer.remove)
    return undo


def without_autocast(modules: Iterable[torch.nn.Module], device_type: str) -> list[Callable[[], None]]:
    """Run modules that something else casts without autocast inside; return what undoes it."""
    region = Region(device_type, None)
    return [LayerForward(module, region, inputs=None, outputs=None, always=False).remove for module in modules]


def check_sharded(model: torch.nn.Module, dtypes: Mapping[str, str], policy: Policy) -> None:
    """Refuse to cast parameters that are sharded already: FSDP2 keeps those that it was given.

    Raises:
        PrepareError: naming the first ones.
    """
    sharded = [
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name, param in module._parameters.items()
        if hasattr(param, "device_mesh") and param.dtype is not DTYPES[dtype_at(path, dtypes) or policy.param_dtype]
    ]
    if sharded and policy.param_dtype != "float32":
        raise errors.PrepareError(
            f"amp.prepare: policy {str(policy)!r} casts parameters, and {len(sharded)} are sharded already "
            f"({errors.first_names(sharded)}): cast the model before it is sharded "
            f"(model.to(torch.{policy.param_dtype})), or use policy 'mixed_{policy.param_dtype}'"
        )


def cast_parameters(model: torch.nn.Module, dtypes: Mapping[str, str], policy: Policy) -> bool:
    """Cast parameters and buffers in place to the policy's dtype, or their layer's; return whether any changed."""
    narrowed = frozenset(DTYPES.values())
    changed = False
    for path, module in modules_by_path(model).items():
        dtype = DTYPES[dtype_at(path, dtypes) or policy.param_dtype]
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.dtype in narrowed and tensor.dtype is not dtype:
                tensor.data = tensor.data.to(dtype)
                changed = True
    return changed


def dtype_at(path: str, dtypes: Mapping[str, str]) -> str | None:
    """Return the dtype of the nearest layer in ``dtypes`` that holds ``path`` (or is it)."""
    while path:
        if path in dtypes:
            return dtypes[path]
        path = path.rpartition(".")[0]
    return None
