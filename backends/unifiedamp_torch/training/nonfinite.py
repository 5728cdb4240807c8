"""What is known of the last skipped step: which gradients were not finite, and whether the loss was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from unifiedamp.backend import NonFiniteReport

from .gradients import dense
from .steps import CaptureDeferred


@dataclass
class LastLoss:
    """The unscaled losses of the step under way.

    Attributes:
        wanted: keep them.
        value: the last one, detached; None where it is not known.
        finite: a number that is finite where all of them are; None where none is known.
    """

    wanted: bool
    value: torch.Tensor | None = None
    finite: torch.Tensor | None = None
    _ended: bool = field(default=True, init=False)

    def note(self, value: torch.Tensor, alone: bool) -> None:
        """Note a loss.

        Args:
            value: the loss, detached.
            alone: do without those before it, which a captured step may not read.
        """
        others = self.finite
        first = alone or self._ended or others is None or others.device != value.device
        self.value = value
        self.finite = value if first or others is None else value + (others - others)
        self._ended = False

    def end(self) -> None:
        """Note the end of a step: the next loss is the first one of another."""
        self._ended = True


class SkipReports:
    """Reports on skipped steps, for ``Training.nonfinite_report``.

    Args:
        gradients: returns the named gradients of an optimizer.
        names: returns the names of all its parameters.
        loss: the session's losses.
        reads_without_sync: skipped steps can be inspected at once, so that none are kept on the device.

    Attributes:
        collect: inspect skipped steps, even if that synchronizes.
        keep: keep what is known of a skipped step on the device.
    """

    def __init__(
        self,
        gradients: Callable[[torch.optim.Optimizer], Mapping[str, torch.Tensor]],
        names: Callable[[torch.optim.Optimizer], Sequence[str]],
        loss: LastLoss,
        reads_without_sync: bool,
    ) -> None:
        self._gradients, self._names, self._loss = gradients, names, loss
        self._reads_without_sync = reads_without_sync
        self._inspected = NonFiniteReport()
        self._skips = LastSkips()
        self.collect = self.keep = False

    def keep_on_device(self, enabled: bool) -> None:
        """Set ``keep``, where it is of use."""
        self.keep = enabled and not self._reads_without_sync

    def inspect(self, optimizer: torch.optim.Optimizer, found: torch.Tensor, capturing: bool) -> None:
        """Inspect a step that may have been skipped, before its gradients are dropped.

        Args:
            optimizer: the step's.
            found: float32 scalar on the device, 1 where the step was skipped.
            capturing: the step is being captured and not executed.

        Raises:
            CaptureDeferred: the capture needs tensors that an uncaptured step allocates.
        """
        if self.collect:
            if found.item():
                self._skips.forget()
                self._inspected = inspected(self._gradients(optimizer), self._loss.finite)
        elif self.keep:
            gradients, loss = self._gradients(optimizer), self._loss.finite
            step = StepKind(id(optimizer), tuple(dict.fromkeys(self._names(optimizer))), loss is not None)
            if capturing and not self._skips.ready(step):
                raise CaptureDeferred  # each replay fills anew what a capture allocates
            self._skips.note(step, gradients, loss, found)

    def report(self) -> NonFiniteReport:
        """Return what is known of the last skipped step; may wait for the device."""
        return self._skips.report() or self._inspected


def inspected(gradients: Mapping[str, torch.Tensor], loss: torch.Tensor | None) -> NonFiniteReport:
    """Return a report on gradients and the unscaled loss; waits for the device.

    Args:
        gradients: name → gradient of the skipped step, dense or sparse.
        loss: a number that is finite where the unscaled losses are, or None when they are not known.
    """
    bad = [name for name, grad in gradients.items() if not bool(torch.isfinite(dense(grad)).all())]
    return NonFiniteReport(tuple(bad), None if loss is None else bool(torch.isfinite(loss)))


class StepKind(NamedTuple):
    """Steps that are noted in the same place.

    Attributes:
        optimizer: its ``id``.
        names: of its parameters, also of those without a gradient: which have one may alternate from step to step.
        has_loss: it is known whether the loss is finite.
    """

    optimizer: int
    names: tuple[str, ...]
    has_loss: bool


class LastSkips:
    """Keeps on the device, without a wait, which gradients were not finite in the last skipped step, of any optimizer.

    A captured step writes into the tensors that existed when it was captured.
    """

    def __init__(self) -> None:
        # For each parameter whether its gradient was not finite, and the loss, where it is known; all false where
        # the last skipped step was another.
        self._kept: dict[StepKind, torch.Tensor] = {}

    def ready(self, step: StepKind) -> bool:
        """Return whether :meth:`note` has a tensor to write into, so that it may be captured."""
        return step in self._kept

    def note(
        self, step: StepKind, gradients: Mapping[str, torch.Tensor], loss: torch.Tensor | None, found: torch.Tensor
    ) -> None:
        """Note a step; one that was not skipped (``found``, a float32 scalar, is 0) changes nothing.

        Args:
            step: its kind.
            gradients: name → gradient, dense or sparse.
            loss: a number that is finite where the unscaled losses are, or None when they are not known.
            found: whether the step was skipped, on the device.
        """
        values = [*map(gradients.get, step.names), *([] if loss is None else [loss.detach()])]
        if not self.ready(step):
            self._kept[step] = torch.zeros(len(values), dtype=torch.bool, device=found.device)
        kept = self._kept[step]
        with torch.no_grad():
            kept.copy_(torch.where(found > 0, ~torch.isfinite(_largest(values, found.device)), kept))
            for other in self._kept.values():
                if other is not kept:
                    other.logical_and_(found == 0)

    def forget(self) -> None:
        """Clear the flags; the tensors stay."""
        for kept in self._kept.values():
            kept.zero_()

    def report(self) -> NonFiniteReport | None:
        """Return what is known of the last skipped step, None where none was; waits for the device."""
        for step, kept in self._kept.items():
            flags = kept.tolist()
            bad = tuple(name for name, flag in zip(step.names, flags, strict=False) if flag)
            if bad:
                return NonFiniteReport(bad, not flags[-1] if step.has_loss else None)
        return None


def _largest(tensors: Sequence[torch.Tensor | None], device: torch.device) -> torch.Tensor:
    """Return each tensor's largest magnitude in one float32 tensor on ``device``; nan where one is nan, 0 for None."""
    present = [dense(each) for each in tensors if each is not None]
    values = [each if each.numel() else each.new_zeros(1) for each in present]
    norms = iter(torch._foreach_norm(values, float("inf")))
    none = torch.zeros((), dtype=torch.float32, device=device)
    found = [none if each is None else next(norms) for each in tensors]
    return torch.stack([each.to(device, torch.float32, non_blocking=True) for each in found])
