"""The scaled loss: the check of what ``amp.scale_loss`` is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from unifiedamp.backend import Switches, errors

from ..distributed.local_passes import LocalPasses
from ..patches import is_scaled, mark_scaled, recomputes_reentrantly
from ..precision.autocast import recomputing
from .gradients import parameters
from .master_weights import MasterWeights
from .native_calls import NativeCalls, note_pass, passes
from .thread_flags import ThreadFlags

Optimizer = torch.optim.Optimizer


@dataclass(frozen=True)
class BackwardContext:
    """What the backward passes of one session share.

    Attributes:
        native: the session's.
        masters: the session's.
        flags: the session's.
        overrides: returns the session's op overrides.
        switches: held during backward passes; None for none.
        local_passes: those whose gradients were not reduced.
        others: returns the parameters that optimizers train, but for those that it is given.
    """

    native: NativeCalls
    masters: MasterWeights
    flags: ThreadFlags
    overrides: Callable[[], Mapping[str, str]]
    switches: Switches | None
    local_passes: LocalPasses
    others: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class TorchScaledLoss:
    """What ``with amp.scale_loss(...) as scaled_loss`` yields; it is its own context.

    Args:
        context: the session's.
        value: the scaled loss, a float32 scalar.
        loss: the unscaled loss.
        optimizers: those that the loss trains.
        inputs: the parameters that get gradients; None means all.
        first: no other loss was scaled since the optimizers' last steps.
    """

    __slots__ = ("_context", "_first", "_inputs", "_loss", "_optimizers", "_used", "_value", "_value_read")

    def __init__(
        self,
        context: BackwardContext,
        value: torch.Tensor,
        loss: torch.Tensor,
        optimizers: Sequence[Optimizer],
        inputs: Sequence[torch.Tensor] | None,
        first: bool,
    ) -> None:
        self._context = context
        self._value, self._loss = value, loss
        self._optimizers, self._inputs = optimizers, inputs
        self._first = first
        self._used = self._value_read = False

    def __enter__(self) -> TorchScaledLoss:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None and self._first and not self._used:
            self._context.native.check_unused(self._optimizers)

    @property
    def value(self) -> torch.Tensor:
        """The scaled loss, a float32 scalar; it may be differentiated by hand."""
        if not self._value_read:
            self._use()
            self._value_read = True
            if self._context.native.rescales:
                self._value.register_hook(note_pass)  # type: ignore[no-untyped-call]  # torch leaves it untyped
                mark_scaled(self._value)
        return self._value

    def _use(self) -> None:
        if self._first and not self._used:
            self._context.native.check_first(self._optimizers)
        self._context.native.use(self._optimizers)
        self._used = True

    def backward(self, retain_graph: bool = False) -> None:
        """Add the gradients of the scaled loss to the parameters of the optimizers that ``scale_loss`` named.

        Args:
            retain_graph: keep the graph, for another loss that shares part of it.

        Raises:
            UnsupportedError: ``retain_graph`` inside a compiled step, or gradients inside a compiled loss.
        """
        context = self._context
        self._use()
        context.flags.grad_enabled = torch.is_grad_enabled()
        before, key = recomputing.overrides, id(self)
        try:
            recomputing.overrides = context.overrides()
            passes.running.add(key)
            if context.native.rescales:
                context.native.unprepared.before_backward()
            if context.switches is None:
                self._differentiate(retain_graph)
            else:
                with context.switches:
                    self._differentiate(retain_graph)
        except RuntimeError as error:
            if retain_graph and "donated buffers" in str(error):
                raise _graph_not_kept() from error
            if "does not currently support double backward" in str(error):
                raise _differentiated_once() from error
            raise
        finally:
            recomputing.overrides = before  # first: Python raises a signal's exception at a call
            passes.running.discard(key)
        context.local_passes.end_backward()
        context.native.unprepared.after_backward()
        if self._first:
            context.native.differentiated(self._loss, self._optimizers)
        if context.masters.in_use:
            for optimizer in self._optimizers:
                params = map(context.masters.model_param, parameters(optimizer))
                context.local_passes.check(params, "amp.scale_loss with master weights")
                context.masters.model_grads_to_master_grads(optimizer)

    def _differentiate(self, retain_graph: bool) -> None:
        inputs, differentiate = self._inputs, self._value.backward
        if inputs is None or not (_are_sharded(inputs) or recomputes_reentrantly(self._value)):
            differentiate(retain_graph=retain_graph or None, inputs=inputs)  # type: ignore[no-untyped-call]  # torch's
            return
        # torch takes no inputs there. FSDP2 differentiates other tensors, and reentrant checkpoints run a backward pass
        # in this one: their parameters would get no gradients, or torch refuses.
        kept = [(param, param.grad) for param in self._context.others(inputs)]
        try:
            for param, _ in kept:
                param.grad = None
            differentiate(retain_graph=retain_graph or None)  # type: ignore[no-untyped-call]  # likewise
        finally:
            for param, grad in kept:
                param.grad = grad


def _are_sharded(params: Sequence[torch.Tensor]) -> bool:
    return any(hasattr(param, "to_local") for param in params)


def _graph_not_kept() -> errors.UnsupportedError:
    return errors.UnsupportedError(
        "scaled_loss.backward(retain_graph=True): torch.compile frees the graphs of compiled steps while it "
        "differentiates; scale the sum of the losses, leave the step uncompiled, or set "
        "torch._functorch.config.donated_buffer = False before it compiles"
    )


def _differentiated_once() -> errors.UnsupportedError:
    return errors.UnsupportedError(
        "scaled_loss.backward(): torch.compile differentiates what it compiles once, and this loss holds gradients "
        "(create_graph=True, as of a gradient penalty); leave the step uncompiled"
    )


def checked_loss(loss: object) -> torch.Tensor:
    """Return ``loss`` in float32.

    Raises:
        LossError: not a tensor, not a scalar, complex, not connected to any parameter, or scaled already.
    """
    if not isinstance(loss, torch.Tensor):
        raise errors.LossError(f"amp.scale_loss: the loss must be a torch.Tensor, got {type(loss).__name__}")
    if loss.dim():
        raise errors.LossError(
            f"amp.scale_loss: the loss must be a scalar, got shape {tuple(loss.shape)}; reduce it first, as by .mean()"
        )
    if loss.is_complex():
        raise errors.LossError(
            f"amp.scale_loss: the loss is {str(loss.dtype).removeprefix('torch.')}, and a gradient is that of a real "
            "number: use its real part or its magnitude, as by loss.real or loss.abs()"
        )
    if not loss.requires_grad:
        raise errors.LossError(
            "amp.scale_loss: the loss is not connected to any parameter (it has no grad_fn): it was computed under "
            "torch.no_grad() or amp.inference(), detached, or all parameters are frozen"
        )
    if is_scaled(loss):
        raise errors.LossError(
            "amp.scale_loss: a torch.amp.GradScaler has scaled this loss already, and the session would scale it "
            "again: pass the loss itself, and leave scaler.scale, scaler.step and scaler.update out"
        )
    return loss.float()
