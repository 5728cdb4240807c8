"""What ``with amp.scale_loss(...)`` yields, and the losses that it takes."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from unifiedamp.backend import errors

from .._types import Array
from ..device.arrays import is_array
from ..device.numpy_semantics import in_numpy_semantics
from ..mxnet_api import autograd, cast, convert, dtype_code, dtype_name
from .scaler import SessionScaler

RunBackward = Callable[[list[Array], "list[Array] | None", bool], None]
"""Takes losses, the gradients that their backward pass starts from, and whether the graph is kept."""


class ScaledLosses:
    """The scaled loss, which is also its context manager.

    Args:
        scaler: the session's.
        losses: scalar losses, one for each context.
        factor: scale / accumulate_steps.
        run: makes the backward pass.
        check: refuses gradients of other backward passes.
        single: whether the user gave one loss, not a list.
    """

    __slots__ = ("_check", "_factor", "_losses", "_run", "_scaler", "_single", "_used")

    def __init__(
        self,
        scaler: SessionScaler,
        losses: list[Array],
        factor: float,
        run: RunBackward,
        check: Callable[[], None],
        single: bool,
    ) -> None:
        self._scaler, self._losses, self._factor, self._run, self._single = scaler, losses, factor, run, single
        self._check = check
        self._used = False

    def __enter__(self) -> ScaledLosses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._used:
            self._check()

    @property
    @in_numpy_semantics
    def value(self) -> Array | list[Array]:
        """The loss in float32, times the scale, divided by ``accumulate_steps``; a list for a list of losses."""
        with autograd.record():
            values = [loss * self._factor for loss in self._losses]
        return values[0] if self._single else values

    @in_numpy_semantics
    def backward(self, retain_graph: bool = False) -> None:
        """Differentiate the scaled loss; its gradients are added to the windows of the Trainers named.

        Args:
            retain_graph: keep the graph, for another loss that shares part of it.
        """
        self._used = True
        self._check()
        if self._factor == 1.0:
            self._run(self._losses, None, retain_graph)
        else:
            heads = [self._scaler.head_gradient(loss, self._factor) for loss in self._losses]
            self._run(self._losses, heads, retain_graph)


def read_losses(loss: object) -> list[Array]:
    """Return the losses as float32 scalars that can be differentiated.

    Raises:
        LossError: something is not an array of floating-point numbers, or holds more than one number.
    """
    losses = []
    for one in loss if isinstance(loss, (list, tuple)) else [loss]:
        if not is_array(one):
            raise errors.LossError(f"amp.scale_loss: the loss must be an MXNet array, got {type(one).__name__}")
        if not dtype_name(one).startswith(("float", "bfloat")):
            raise errors.LossError(
                f"amp.scale_loss: the loss must hold floating-point numbers, which have gradients; it has dtype "
                f"{dtype_name(one)}"
            )
        if one.size != 1:
            raise errors.LossError(
                f"amp.scale_loss: the loss must be a scalar, got shape {one.shape}; take its mean() inside autocast"
            )
        losses.append(one if dtype_code(one) == 0 else _widened(one))
    return losses


def _widened(loss: Array) -> Array:
    with autograd.record():
        return convert(loss, "float32") if dtype_name(loss) == "float64" else cast(loss, "float32")


def read_condition(condition: object) -> bool:
    """Return whether a condition of ``amp.skip_if`` holds; waits for it.

    Raises:
        WrongObjectError: it is no scalar of MXNet.
    """
    if is_array(condition) and condition.shape in ((), (1,)):
        return bool(condition.asnumpy().reshape(()) != 0)
    got = f"shape {condition.shape}; reduce it first" if is_array(condition) else type(condition).__name__
    raise errors.WrongObjectError(
        f"amp.skip_if: the condition must be a bool, or an MXNet array with one element; got {got}"
    )
