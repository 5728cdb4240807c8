"""Op overrides: kernels at the autocast dispatch key that apply what the thread's region asks for."""

from __future__ import annotations

import functools
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from unifiedamp.backend import errors

from ..device.kinds import traits
from . import emulation
from .autocast import active_overrides
from .casts import tensors

#: Operation of the neutral vocabulary → its aten operators. Others cannot be overridden.
TABLE: dict[str, tuple[str, ...]] = {
    "matmul": ("matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linalg_multi_dot"),
    "linear": ("linear",),
    "conv": ("conv1d", "conv2d", "conv3d", "conv1d.padding", "conv2d.padding", "conv3d.padding", "convolution"),
    "conv_transpose": ("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"),
    "attention": ("scaled_dot_product_attention",),
    "embedding": ("embedding",),
    "rnn": ("lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input",
            "rnn_relu.data", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    "softmax": ("softmax.int",),
    "log_softmax": ("log_softmax.int",),
    "layer_norm": ("layer_norm",),
    "batch_norm": ("batch_norm",),
    "group_norm": ("group_norm",),
    "relu": ("relu",),
    "gelu": ("gelu",),
    "silu": ("silu",),
    "sigmoid": ("sigmoid",),
    "tanh": ("tanh",),
    "softplus": ("softplus",),
    "exp": ("exp",),
    "log": ("log",),
    "pow": ("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar"),
    "rsqrt": ("rsqrt",),
    "sum": ("sum", "sum.dim_IntList"),
    "mean": ("mean", "mean.dim"),
    "prod": ("prod", "prod.dim_int"),
    "cumsum": ("cumsum",),
    "norm": ("linalg_vector_norm", "norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype",
             "norm.ScalarOpt_dim_dtype"),
    "cross_entropy": ("cross_entropy_loss", "nll_loss", "nll_loss_nd"),
    "mse_loss": ("mse_loss",),
    "l1_loss": ("l1_loss",),
}  # fmt: skip

#: Arguments that are not cast, by position: batch norm writes its statistics, and its weights must match them.
_KEPT = {"batch_norm": (1, 2, 3, 4)}
_NARROW = (torch.float16, torch.bfloat16, torch.float32)


@functools.cache
def _cast_names(device_type: str) -> frozenset[str]:
    """Return the ATen operators that autocast has a kernel for."""
    found = torch._C._dispatch_get_registrations_for_dispatch_key(key(device_type))
    return frozenset(name.removeprefix("aten::") for name in found if name.startswith("aten::"))


def _held_names(op: str, device_type: str) -> Sequence[str]:
    """Return the operators to register kernels for."""
    if op != emulation.OTHERS:
        return TABLE[op]
    return sorted(_cast_names(device_type).difference(*TABLE.values()))


def _casts(op: str, device_type: str) -> bool:
    """Return whether autocast has a kernel for an operation."""
    return not _cast_names(device_type).isdisjoint(_held_names(op, device_type))


def aten_names(op: str) -> list[str]:
    """Return the ATen operators that an operation of the neutral vocabulary stands for."""
    return [f"aten::{name}" for name in TABLE[op]]


def key(device_type: str) -> str:
    """Return the name of the autocast dispatch key; "" where op overrides cannot be registered."""
    return traits(device_type).autocast_key


def check(overrides: Iterable[str], device_type: str, setting: str = "op_overrides") -> None:
    """Refuse overrides that are not supported here.

    Args:
        overrides: operations of the vocabulary.
        device_type: "cpu", "cuda", ….
        setting: what asks for them, in messages.

    Raises:
        UnsupportedError: naming the operation, or the torch that has what is missing.
    """
    wanted = list(overrides)
    if not wanted:
        return
    if not hasattr(torch.library, "get_kernel"):
        raise errors.UnsupportedError(
            f"{setting} ({', '.join(wanted)}) need torch 2.9 or newer, this is {torch.__version__}: older ones "
            "cannot give back autocast's own kernel to threads that ask for no override"
        )
    if not key(device_type):
        raise errors.UnsupportedError(f"{setting} ({', '.join(wanted)}) are not done on {device_type!r} devices")
    missing = [op for op in wanted if op not in TABLE]
    if missing:
        raise errors.UnsupportedError(f"{setting}: torch has no operator for {errors.first_names(missing)}")


class _Registry:
    """Counts the users of each overridden operation, by device type.

    A session that is garbage-collected releases its operations at any moment, also while this thread registers others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], tuple[torch.library.Library, int]] = {}
        self._released: deque[tuple[str, str]] = deque()

    def hold(self, op: str, device_type: str) -> None:
        """Register the kernels of ``op`` unless they are."""
        with self._lock:
            library, users = self._held.get((op, device_type), (None, 0))
            self._held[op, device_type] = (library or _register(op, device_type), users + 1)
        self._remove_released()

    def release(self, op: str, device_type: str) -> None:
        """Remove the kernels with their last user. Where another call holds the lock, that call removes them."""
        self._released.append((op, device_type))
        self._remove_released()

    def _remove_released(self) -> None:
        while self._released and self._lock.acquire(blocking=False):
            try:
                while self._released:
                    self._remove(self._released.popleft())
            finally:
                self._lock.release()

    def _remove(self, key: tuple[str, str]) -> None:
        library, users = self._held.pop(key)
        if users > 1:
            self._held[key] = (library, users - 1)
        else:
            library._destroy()  # type: ignore[no-untyped-call]  # torch leaves it untyped


_registry = _Registry()


def hold(choices: Mapping[str, str], device_type: str) -> Callable[[], None]:
    """Make choices for these operations work in regions that ask for them; return what releases them, once."""
    left = [op for op, choice in choices.items() if choice != emulation.KEEP or _casts(op, device_type)]
    for op in left:
        _registry.hold(op, device_type)

    def release() -> None:
        while left:
            _registry.release(left.pop(), device_type)

    return release


def _register(op: str, device_type: str) -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with warnings.catch_warnings():
        # torch warns once per process that an operator's kernel was overridden; here that is the point.
        warnings.simplefilter("ignore", UserWarning)
        for name in _held_names(op, device_type):
            kernel = _kernel(op, name, device_type)
            library.impl(name, kernel, key(device_type), with_keyset=True)  # type: ignore[no-untyped-call]  # torch's
    return library


def _kernel(op: str, name: str, device_type: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    native = _native_kernel(operator, name, device_type)
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key(device_type)))
    kept = _KEPT.get(packet, ())
    is_cast = name in _cast_names(device_type)
    uncast = _uncast(operator, name, key(device_type))

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        overrides = active_overrides()
        choice = overrides.get(op) if overrides else None
        if choice is None:
            return native(keyset, *args, **kwargs)
        if choice in emulation.CHOICES:
            # Recurrent layers without a cast are made of linear ones, which are emulated.
            emulates = is_cast or (choice == emulation.EMULATE_16_BIT and op != "rnn")
            dtype = emulation.dtype_of(choice, (args, kwargs), device_type) if emulates else None
            if dtype is None:
                return (native if choice == emulation.EMULATE else uncast)(keyset, *args, **kwargs)
            with torch._C._ExcludeDispatchKeyGuard(excluded):
                return emulation.run(operator, args, kwargs, dtype, device_type)
        dtype = _chosen_dtype(choice, device_type, (args, kwargs))
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            args = tuple(arg if i in kept else _cast(arg, dtype, device_type) for i, arg in enumerate(args))
            kwargs = {key: _cast(value, dtype, device_type) for key, value in kwargs.items()}
            return operator(*args, **kwargs)

    return kernel


def _native_kernel(operator: Any, name: str, device_type: str) -> Callable[..., Any]:
    """Return autocast's own kernel of the operator."""
    at = key(device_type)
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", at):
        return torch.library.get_kernel(f"aten::{name}", at).call_boxed
    return _fall_through(operator, at)


def _uncast(operator: Any, name: str, at: str) -> Callable[..., Any]:
    """Return what runs the operator as outside autocast; the operators that it is made of stay under autocast."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CompositeImplicitAutograd"):
        return _fall_through(operator, at)
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, at))

    def run(_keyset: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return operator(*args, **kwargs)

    return run


def _fall_through(operator: Any, at: str) -> Callable[..., Any]:
    """Return what goes on to the next key, with autocast still on for what the operator calls."""
    here = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, at))

    def fall_through(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        return operator.redispatch(keyset - here, *args, **kwargs)

    return fall_through


def _chosen_dtype(choice: str, device_type: str, arguments: Any) -> torch.dtype:
    if choice == "compute":
        return torch.get_autocast_dtype(device_type)
    if choice == "float32":
        return torch.float32
    widest: torch.dtype | None = None
    for tensor in tensors(arguments):
        if tensor.is_floating_point() and tensor.device.type == device_type:
            widest = tensor.dtype if widest is None else torch.promote_types(widest, tensor.dtype)
    return widest or torch.float32


def _cast(value: Any, dtype: torch.dtype, device_type: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in _NARROW and value.device.type == device_type else value
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(item, dtype, device_type) for item in value)
    return value
