"""The role of tuning: what each item of ``Tuning`` is on a device, and what was tuned."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import pairwise

import torch

from unifiedamp.backend import (
    PlanRow,
    SessionSpec,
    Support,
    Switches,
    Tuner,
    Tuning,
    bias_rows,
    compile_note,
    errors,
    item_rows,
)

from ..layer_paths import modules_by_path
from . import switches
from .debug_modes import debug_modes
from .fused_optimizers import fuse, is_fused, why_not_fused
from .kinds import traits
from .placement import has_images

NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)
BEFORE_NORMS = (torch.nn.Linear, *torch.nn.Conv2d.__mro__[1:2])

NATIVE = {
    "channels_last": "model.to(memory_format=torch.channels_last)",
    "tf32": "torch.set_float32_matmul_precision('high'), torch.backends.cudnn.allow_tf32 = True",
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    "fused_optimizer": "optimizer.param_groups[…]['fused'] = True",
    "set_to_none": "param.grad = None",
    "compile": "torch.compile(fn)",
    "checkpoint_layers": "torch.utils.checkpoint.checkpoint(layer, use_reentrant=False)",
}


def support(device: torch.device) -> dict[str, Support]:
    """Return what each item is on a device."""
    found = {item: Support(True, native) for item, native in NATIVE.items()}
    found["tf32"] = traits(device).tf32(device, NATIVE["tf32"])
    if not traits(device).cudnn:
        found["cudnn_benchmark"] = Support(False, f"cuDNN is of NVIDIA's GPUs, and this session is on {device}")
    return found


def switches_of(tuning: Tuning, device: torch.device) -> Switches:
    """Return the process-wide settings that hold while a session computes."""
    supported = support(device)
    wanted = [*switches.TF32] if tuning.tf32 and supported["tf32"] else []
    if tuning.cudnn_benchmark and supported["cudnn_benchmark"]:
        wanted.append(switches.CUDNN_BENCHMARK)
    return Switches(wanted)


class TorchTuner(Tuner):
    """What a session tunes of its models and optimizers.

    Args:
        spec: the session's.
        device: the session's.

    Attributes:
        switches: process-wide settings that hold while the session computes.
    """

    def __init__(self, spec: SessionSpec, device: torch.device) -> None:
        self._spec, self._device = spec, device
        self._tuning = spec.tuning
        self._without_images: list[str] = []
        self._optimizers: dict[str, str] = {}
        self._checkpointed: list[str] = []
        self._biases: list[str] = []
        self.switches = switches_of(spec.tuning, device)

    def support(self) -> dict[str, Support]:
        return support(self._device)

    def debug_modes(self) -> dict[str, str]:
        return debug_modes()

    # -- preparing -----------------------------------------------------------------------------------------------

    def fuse(self, optimizers: Sequence[torch.optim.Optimizer], sparse: Container[int]) -> Iterator[Callable[[], None]]:
        """Fuse the optimizers that can be; yield what undoes it.

        Args:
            optimizers: those that are prepared.
            sparse: ids of the parameters that get sparse gradients.
        """
        for optimizer in optimizers if self._tuning.fused_optimizer else ():
            name = f"{type(optimizer).__name__} {len(self._optimizers)}"
            if is_fused(optimizer):
                self._optimizers[name] = "it is"
                continue
            why = self._optimizers[name] = why_not_fused(optimizer, sparse)
            if why:
                self._warn_without_effect("fused_optimizer", why)
            else:
                yield fuse(optimizer)

    def note_model(self, model: torch.nn.Module, checkpointed: Sequence[str]) -> None:
        """Note the layers of a prepared model that rows name."""
        self._checkpointed += checkpointed
        self._biases += biases_before_norm(model)
        if self._tuning.channels_last and not has_images(model):
            self._without_images.append(type(model).__name__)
            self._warn_without_effect("channels_last", self._no_images())

    def _warn_without_effect(self, item: str, why: str) -> None:
        if not self._tuning.best_effort:
            self._spec.warn(f"tuning.{item} has no effect here: {why}", errors.TuningWarning)

    # -- explaining ----------------------------------------------------------------------------------------------

    def rows(self) -> list[PlanRow]:
        held = "while the session computes; then as it was found"
        notes = {
            "channels_last": self._layout(),
            "tf32": ("native", held),
            "cudnn_benchmark": ("native", f"{held}. Each new shape costs a trial"),
            "fused_optimizer": self._fused(),
            "set_to_none": ("native", "amp.step does so in every session"),
            "compile": self._compiled(),
            "checkpoint_layers": ("native", self._recomputed()),
        }
        compiled = Support(True, "amp.compile(mode='max')" if self._spec.compile_mode == "max" else "none")
        rows = item_rows(self._tuning, self.support() | {"compile": compiled}, notes)
        return rows + bias_rows(self._biases, "make the layer with bias=False", "layers'")

    def _layout(self) -> tuple[str, str]:
        if self._without_images:
            return "no effect", f"no effect here: {self._no_images()}"
        return "native", "convolutional models; their convolutions answer in this layout whatever the batch's"

    def _no_images(self) -> str:
        return f"{errors.first_names(self._without_images)} has no convolution in two dimensions"

    def _fused(self) -> tuple[str, str]:
        reasons = self._optimizers.values()
        why = [reason for reason in reasons if reason not in ("", "it is")]
        if why:
            return "no effect", f"no effect here: {'; '.join(why)}"
        made_so = reasons and all(reason == "it is" for reason in reasons)
        return "native", "the optimizers were made so" if made_so else "from amp.prepare on"

    def _compiled(self) -> tuple[str, str]:
        mode = self._spec.compile_mode
        return ("native", "see the row 'compile'") if mode == "max" else compile_note(mode)

    def _recomputed(self) -> str:
        known = errors.first_names(self._checkpointed) or "layers are known once a model is prepared"
        return f"{known}; recomputed under the region's autocast, batch norms count a batch once"


def biases_before_norm(model: torch.nn.Module) -> list[str]:
    """Return the layers with a bias that a batch norm follows, in the order in which layers were created."""
    leaves = [
        (path, module) for path, module in modules_by_path(model).items() if next(module.children(), None) is None
    ]
    return [path for (path, layer), (_, norm) in pairwise(leaves) if _subtracts_bias(norm, layer)]


def _subtracts_bias(norm: torch.nn.Module, layer: torch.nn.Module) -> bool:
    if not isinstance(norm, NORMS) or not isinstance(layer, BEFORE_NORMS):
        return False
    outputs = getattr(layer, "out_channels", getattr(layer, "out_features", None))
    return getattr(layer, "bias", None) is not None and norm.num_features == outputs
