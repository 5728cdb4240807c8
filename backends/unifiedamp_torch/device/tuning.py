"""``Tuning`` on torch: what each item is on a device, and doing it to models and optimizers."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch

from unifiedamp.backend import (
    PlanRow,
    SessionSpec,
    Support,
    Switches,
    Tuning,
    bias_rows,
    compile_note,
    errors,
    item_rows,
)

from ..training.update import settle
from . import switches
from .placement import follow, has_images

TF32_SINCE = (8, 0)
"""The first compute capability with TF32."""
NO_CUDA = "{what} is of NVIDIA's GPUs, and this session is on {device}"
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
    if device.type != "cuda":
        found["tf32"] = Support(False, NO_CUDA.format(what="TF32", device=device))
        found["cudnn_benchmark"] = Support(False, NO_CUDA.format(what="cuDNN", device=device))
    elif torch.version.hip is None and torch.cuda.get_device_capability(device) < TF32_SINCE:
        found["tf32"] = Support(False, f"{torch.cuda.get_device_name(device)} has no TF32, which came with 8.0")
    return found


def switches_of(tuning: Tuning, device: torch.device) -> Switches:
    """Return what holds while a session computes."""
    there = support(device)
    wanted = [*switches.TF32] if tuning.tf32 and there["tf32"] else []
    if tuning.cudnn_benchmark and there["cudnn_benchmark"]:
        wanted.append(switches.CUDNN_BENCHMARK)
    return Switches(wanted)


# -- fused optimizers --------------------------------------------------------------------------------------------------


def why_not_fused(optimizer: torch.optim.Optimizer) -> str:
    """Return why an optimizer has no fused form for its parameters; "" where it has."""
    name = type(optimizer).__name__
    if "fused" not in inspect.signature(type(optimizer).__init__).parameters:
        return f"{name} has no fused form"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"this {name} is differentiable"
    for group in optimizer.param_groups:
        for param in group["params"]:
            if not torch.is_floating_point(param):
                return f"it has parameters of dtype {param.dtype}"
            if (name, param.device.type) == ("SGD", "cpu") and param.dtype in (torch.float16, torch.bfloat16):
                return f"torch's fused SGD on a CPU leaves parameters of dtype {param.dtype} as they are"
            if param.device.type not in _fused_devices(name):
                return f"{name} is not fused on {param.device.type} by torch {torch.__version__}"
    return ""


def _fused_devices(name: str) -> Sequence[str]:
    on_cpu = {"Adagrad": (2, 4), "Adam": (2, 4), "AdamW": (2, 4), "SGD": (2, 4)}.get(name)
    return ("cuda", "cpu", "xpu", "mps") if on_cpu and torch.__version__ >= on_cpu else ("cuda",)


def fuse(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Have the optimizer update many parameters by one kernel, checkpoints loaded later included; return what takes
    that back.
    """
    kept = [(group, {name: group.get(name) for name in ("fused", "foreach")}) for group in optimizer.param_groups]
    marks = {name: vars(optimizer)[name] for name in _MARKS if name in vars(optimizer)}
    _set_fused(optimizer)
    follow(optimizer)
    hook = optimizer.register_load_state_dict_post_hook(_set_fused)

    def undo() -> None:
        hook.remove()
        # By order and not by identity: a loaded checkpoint brings groups of its own.
        for group, (_, before) in zip(optimizer.param_groups, kept, strict=False):
            group.update(before)
        for name in _MARKS:
            vars(optimizer).pop(name, None)
        vars(optimizer).update(marks)
        _bring_steps_home(optimizer)

    return undo


def _set_fused(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group.update(fused=True, foreach=False)
    vars(optimizer).update(dict.fromkeys(_MARKS, True))
    settle(optimizer)


_MARKS = ("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused")
"""What an optimizer made with ``fused=True`` notes of itself."""


def _bring_steps_home(optimizer: torch.optim.Optimizer) -> None:
    """Take counters of steps back to the CPU, where an optimizer that is neither fused nor capturable wants them."""
    capturable = any(group.get("capturable") for group in optimizer.param_groups)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor) and not capturable and not _fused(optimizer):
            state["step"] = state["step"].cpu()


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    return all(group.get("fused") for group in optimizer.param_groups)


class Tuned:
    """What a session has tuned of its models and optimizers, for ``amp.explain()``.

    Args:
        spec: the session's.
        device: the session's.
    """

    def __init__(self, spec: SessionSpec, device: torch.device) -> None:
        self._spec, self._device = spec, device
        self._tuning = spec.tuning
        self._plain: list[str] = []
        self._optimizers: dict[str, str] = {}
        self._checkpointed: list[str] = []
        self._biases: list[str] = []
        self.switches = switches_of(spec.tuning, device)

    def fuse(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[Callable[[], None]]:
        """Fuse the optimizers that can be; yield what takes that back."""
        for optimizer in optimizers if self._tuning.fused_optimizer else ():
            name = f"{type(optimizer).__name__} {len(self._optimizers)}"
            if _fused(optimizer):
                self._optimizers[name] = "it is"
                continue
            why = self._optimizers[name] = why_not_fused(optimizer)
            if why:
                self._lacks("fused_optimizer", why)
            else:
                yield fuse(optimizer)

    def note(self, model: torch.nn.Module, checkpointed: Sequence[str]) -> None:
        """Note what a prepared model is like."""
        self._checkpointed += checkpointed
        self._biases += biases_before_norm(model)
        if self._tuning.channels_last and not has_images(model):
            self._plain.append(type(model).__name__)
            self._lacks("channels_last", self._without_images())

    def _lacks(self, item: str, why: str) -> None:
        if not self._tuning.best_effort:
            self._spec.warn(f"tuning.{item} has no effect here: {why}", errors.TuningWarning)

    # -- explaining ----------------------------------------------------------------------------------------------

    def rows(self) -> list[PlanRow]:
        """Return the rows of ``amp.explain()``."""
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
        rows = item_rows(self._tuning, support(self._device) | {"compile": compiled}, notes)
        return rows + bias_rows(self._biases, "make the layer with bias=False", "layers'")

    def _layout(self) -> tuple[str, str]:
        if self._plain:
            return "no effect", f"no effect here: {self._without_images()}"
        return "native", "convolutional models; their convolutions answer in this layout whatever the batch's"

    def _without_images(self) -> str:
        return f"{errors.first_names(self._plain)} has no convolution in two dimensions"

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
    """Return the layers with a bias that a batch norm follows, in the order in which layers were made."""
    leaves = [(path.replace("_orig_mod.", ""), module) for path, module in model.named_modules() if not _inner(module)]
    return [
        path
        for (path, layer), (_, norm) in pairwise(leaves)
        if isinstance(norm, NORMS) and isinstance(layer, BEFORE_NORMS) and layer.bias is not None
        and norm.num_features == getattr(layer, "out_channels", getattr(layer, "out_features", None))
    ]  # fmt: skip


def _inner(module: torch.nn.Module) -> bool:
    return next(module.children(), None) is not None


def debugging_switches() -> dict[str, str]:
    """Return torch's debugging switches that are on → what they cost."""
    found = {
        "torch.autograd.set_detect_anomaly(True)": torch.is_anomaly_enabled(),
        "torch.autograd.profiler": torch.autograd._profiler_enabled(),
        "CUDA_LAUNCH_BLOCKING=1": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
        "torch.cuda.set_sync_debug_mode": torch.cuda.is_initialized() and torch.cuda.get_sync_debug_mode() != 0,
    }
    return {switch: COSTS[switch] for switch, on in found.items() if on}


COSTS = {
    "torch.autograd.set_detect_anomaly(True)": "each operation keeps a stack trace, each gradient is checked for nan",
    "torch.autograd.profiler": "each operation is written down",
    "CUDA_LAUNCH_BLOCKING=1": "each kernel is waited for",
    "torch.cuda.set_sync_debug_mode": "each wait for the device is looked for",
}
