"""A stand-in for CUDA graphs on the CPU: records the operations that a function asks for, and does them again.

As on a GPU, a capture does nothing, replays read and write the tensors of the capture, and reading a value on the host
breaks the capture. Parameters, buffers and whatever else the function writes to in place are put back after recording.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_iter

HOST_READS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.item.default,
)


class Tape(TorchDispatchMode):
    """Records operations; the tensors they return are those that each replay fills."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []
        self.touched: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in HOST_READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        inputs = [each for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)]
        if func._schema.is_mutable:
            self.touched += [(each, each.clone()) for each in inputs if _memory(each) not in self.made]
        output = func(*args, **kwargs)
        outputs = [each for each in tree_flatten(output)[0] if isinstance(each, torch.Tensor)]
        self.made |= {_memory(each) for each in outputs} - {_memory(each) for each in inputs}
        self.done.append((func, args, kwargs, outputs))
        return output

    def replay(self) -> None:
        """Do all of it again, into the same tensors."""
        with torch.no_grad(), unseen(*[tensor for tensor, _ in self.touched]):
            for func, args, kwargs, outputs in self.done:
                again = [each for each in tree_flatten(func(*args, **kwargs))[0] if isinstance(each, torch.Tensor)]
                for old, new in zip(outputs, again, strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def unseen(*tensors: torch.Tensor) -> Any:
    """Return a context whose writes leave the tensors' versions alone, as what a GPU does behind Python's back."""
    return torch.autograd._unsafe_preserve_version_counter(tensors)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class TapeCapturer:
    """What ``graph.CudaGraphCapturer`` is on a GPU.

    Attributes:
        captures, replays: how many there were.
    """

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def run(self, fn: Any) -> Any:
        return fn()

    def capture(self, fn: Any) -> Any:
        tape = Tape()
        try:
            with tape:
                output = fn()
        finally:
            with torch.no_grad():
                for tensor, before in reversed(tape.touched):
                    with unseen(tensor):
                        tensor.copy_(before)
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            tape.replay()

        return replay, output
