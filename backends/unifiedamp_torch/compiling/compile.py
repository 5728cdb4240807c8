"""``amp.compile``: torch.compile of a whole step."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from unifiedamp.backend import Policy

from ..device.kinds import TRAITS
from ..precision.float8_state import Float8State
from ..precision.thread_state import entered
from ..training.thread_flags import ThreadFlags
from .force_eager import ForceEager
from .recorded_calls import CallRecorder

_TRACED = {
    "unifiedamp": {"cli", "compat", "conformance", "custom_functions", "migrate", "output", "workloads"},
    "unifiedamp_torch": {"conformance", "precision", "recording", "training"},
    "unifiedamp_torch.precision": {
        "autocast", "casts", "custom_functions", "float8", "float8_casts", "float8_experts", "float8_forward",
        "float8_grouped", "float8_products", "float8_scales", "float8_weights", "gathered_weight", "layers",
        "recomputation",
    },
    "unifiedamp_torch.recording": {"compiled_layers"},
    "unifiedamp_torch.training": {"bfloat16_rounding", "compiled_update", "rounded_update", "scale_transition"},
}  # fmt: skip
"""Package → the modules that dynamo may trace: what runs inside a model's forward, and what compiled updates are.
Everything else runs uncompiled, since dynamo would guard on the counters there and trace again at each step."""


NOTHING = nullcontext()

_SKIPS = "skip_tensor_guards_with_matching_dict_tags"
_TAG = "cache_key_tag"

_TOGETHER = {"combo_kernels": True, "combo_kernels_pointwise_only": True, "combo_kernels_autotune": 0}
"""Inductor's settings that fuse independent pointwise kernels: the casts of all weights, and of their gradients.
Reductions stay separate; fused they are slower."""


@functools.cache
def ready_dynamo() -> None:
    """Make dynamo run this package's Python uncompiled; a call of it inside a compiled step is a graph break."""
    with warnings.catch_warnings():
        # torch's compiler uses deprecated parts of torch at import.
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._inductor.compile_fx")
    from torch._dynamo import trace_rules

    for name in untraced_modules():
        trace_rules.add(name)


def untraced_modules() -> list[str]:
    """Return the modules and packages of core and of this backend that dynamo does not trace.

    Raises:
        RuntimeError: a module named in the table of traced ones does not exist.
    """
    untraced = []
    for package, traced in _TRACED.items():
        found = {module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)}
        if not traced <= found:
            raise RuntimeError(f"{package} has no module {', '.join(sorted(traced - found))}")
        untraced += [f"{package}.{name}" for name in sorted(found - traced)]
    return untraced


def compile_step(
    fn: Callable[..., Any],
    overrides: Callable[[], Mapping[str, str]],
    runs_eager: Callable[[], bool],
    static: bool = False,
    switches: AbstractContextManager[Any] = NOTHING,
    flags: ThreadFlags | None = None,
    float8: Float8State | None = None,
    policy: Callable[[], Policy] | None = None,
    recorder: CallRecorder | None = None,
) -> Callable[..., Any]:
    """Return ``torch.compile(fn)``, with the session's op overrides active while it traces.

    Args:
        fn: a step, or a module (which stays one).
        overrides: returns the session's op overrides; the step is compiled for each it has returned.
        runs_eager: called at each call of a step: whether this one runs as plain Python.
        static: compile for each shape anew, and for few kernels, as a step that is captured for each shape needs it.
        switches: held around each call of a step.
        flags: the session's. The thread's state is saved where a call of a step begins, and restored where it raises:
            a signal in what dynamo makes of a region does not leave the region.
        float8: the session's; weights that are cast once a window are cast before the step.
        policy: of a session with a schedule, returns the one in force; the step is compiled anew for each.
        recorder: records layers in what is compiled: such calls are compiled apart from all others.
    """
    ready_dynamo()
    compiler = _StepCompiler(fn, static, separate=policy is not None)
    if isinstance(fn, torch.nn.Module):
        return _sound_model(compiler(overrides()))
    made: dict[Any, Callable[..., Any]] = {}

    def run_compiled(*args: Any, **kwargs: Any) -> Any:
        choices = overrides()
        recorded = recorder is not None and recorder.traces_layers()
        key = tuple(choices.items()), None if policy is None else policy(), recorded
        compiled = made.get(key) or made.setdefault(key, sound(compiler(choices, recorded)))
        noting = recorder.tracing() if recorder is not None and recorded else NOTHING
        # While tracing, dynamo enters regions itself and not through Region.
        before = entered.overrides, entered.in_compiled_step
        try:
            entered.overrides, entered.in_compiled_step = choices or None, True
            with switches, noting, NOTHING if float8 is None else float8.around_compiled():
                return compiled(*args, **kwargs)
        finally:
            entered.overrides, entered.in_compiled_step = before

    @functools.wraps(fn)
    def step(*args: Any, **kwargs: Any) -> Any:
        found = None if flags is None else flags.save_with_regions()
        if runs_eager():
            with ForceEager():
                return fn(*args, **kwargs)
        try:
            return run_compiled(*args, **kwargs)
        except BaseException:
            if found is not None:
                found.restore()
            raise

    return step


@dataclass(frozen=True)
class _StepCompiler:
    """Calls ``torch.compile`` on a step or a module.

    Attributes:
        fn: what is compiled.
        static: for each shape anew, and for few kernels.
        separate: share no code with other sessions' steps.
    """

    fn: Callable[..., Any]
    static: bool
    separate: bool

    def __call__(self, choices: Mapping[str, str], recorded: bool = False) -> Callable[..., Any]:
        """Compile it under op overrides ``choices``; ``recorded``: its layers are."""
        settings = _few_kernels() if self.static else {}
        dynamic = False if self.static else None
        if choices or recorded or self.separate:  # dynamo guards on a region as an object, whatever its dtype
            return torch.compile(self.fn, backend=_OwnInductor(settings), dynamic=dynamic)
        return torch.compile(self.fn, dynamic=dynamic, options=settings or None)


def compile_call(module: torch.nn.Module, overrides: Mapping[str, str], parts: int = 1) -> Callable[..., Any]:
    """Return ``torch.compile`` of a module's call, hooks included, for few kernels.

    Args:
        module: whose call it is.
        overrides: the session's.
        parts: how many modules are compiled so. Dynamo counts programs by code, which modules of one class share, and
            at its limit runs what comes next uncompiled; a layer whose forward was replaced is another program in
            each of them.
    """
    ready_dynamo()
    settings = _few_kernels()
    if overrides:
        compiled = torch.compile(module._call_impl, backend=_OwnInductor(settings), dynamic=False)
    else:
        compiled = torch.compile(module._call_impl, dynamic=False, options=settings or None)
    return _with_limits(sound(compiled), parts)


_LIMITS = ("recompile_limit", "accumulated_recompile_limit")


def _with_limits(compiled: Callable[..., Any], parts: int) -> Callable[..., Any]:
    """Return a compiled call for which dynamo's limits hold for each of so many parts."""
    dynamo: Any = importlib.import_module("torch._dynamo").config

    @functools.wraps(compiled)
    def called(*args: Any, **kwargs: Any) -> Any:
        with dynamo.patch({name: parts * getattr(dynamo, name) for name in _LIMITS if hasattr(dynamo, name)}):
            return compiled(*args, **kwargs)

    return called if parts > 1 else compiled


def sound(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Return what ``torch.compile`` made, called under settings without which torch before 2.13 runs a wrong program.

    There dynamo skips guards on ``requires_grad`` of parameters, so that a layer which was frozen when it was compiled
    gets no gradient once it is unfrozen (https://github.com/pytorch/pytorch/issues/139476). And AOTAutograd's cache,
    which is on disk, ignores the dtype of the autocast region around a graph, so that a float16 region may run what was
    compiled for bfloat16: here the regions are part of its key.
    """
    if torch.__version__ >= (2, 13):  # type: ignore[operator]  # TorchVersion compares with tuples
        return compiled
    dynamo = importlib.import_module("torch._dynamo").config

    @functools.wraps(compiled)
    def called(*args: Any, **kwargs: Any) -> Any:
        guarded = dynamo.patch({_SKIPS: False}) if hasattr(dynamo, _SKIPS) else NOTHING
        with guarded, _cached_by_autocast():
            return compiled(*args, **kwargs)

    return called


def _sound_model(compiled: Any) -> torch.nn.Module:
    """Make a compiled module :func:`sound`; it stays a module."""
    compiled.forward = sound(compiled.forward)
    return compiled  # type: ignore[no-any-return]  # torch.compile of a module is one


def _cached_by_autocast() -> AbstractContextManager[Any]:
    """Have the keys of caches on disk name the regions around; where keys take no tag, leave AOTAutograd's out."""
    config = _tagged_config()
    if config is None:
        return _without_autograd_cache()
    regions = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in TRAITS]
    return config.patch({_TAG: f"{getattr(config, _TAG)} {regions}"})  # type: ignore[no-any-return]  # a context


@functools.cache
def _tagged_config() -> Any:
    """Return the settings that hold a tag for the keys of all caches; None before torch 2.7."""
    try:
        config = importlib.import_module("torch.compiler.config")
    except ModuleNotFoundError:
        return None
    return config if hasattr(config, _TAG) else None


def _without_autograd_cache() -> AbstractContextManager[Any]:
    config: Any = importlib.import_module("torch._functorch.config")
    cache = "enable_autograd_cache"  # torch 2.5 and later
    return config.patch({cache: False}) if hasattr(config, cache) else NOTHING


def _few_kernels() -> dict[str, Any]:
    """Return the settings for few kernels; none where Inductor (before torch 2.11) cannot keep reductions apart."""
    from torch._inductor import config

    return _TOGETHER if all(hasattr(config, name) for name in _TOGETHER) else {}


class _OwnInductor:
    """Inductor as a separate backend: dynamo shares no code between backends, and guards on no overrides.

    Args:
        settings: Inductor's, for what it compiles.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    def __call__(self, graph: Any, inputs: Any) -> Any:
        """Compile a graph."""
        from torch._inductor.compile_fx import compile_fx

        with _without_autograd_cache():  # its key is the graph before overrides and emulation are traced into it
            return compile_fx(graph, inputs, config_patches=self._settings)
