"""What is known of the last skipped step: which gradients were not finite, and whether the loss was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
        loss: the session's losses.
        reads_without_sync: skipped steps can be inspected at once, so that none are kept on the device.

    Attributes:
        collect: inspect skipped steps, even if that synchronizes.
        keep: keep what is known of a skipped step on the device.
    """

    def __init__(
        self,
        gradients: Callable[[torch.optim.Optimizer], Mapping[str, torch.Tensor]],
        loss: LastLoss,
        reads_without_sync: bool,
    ) -> None:
        self._gradients, self._loss = gradients, loss
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
            noted = (id(optimizer), self._gradients(optimizer), self._loss.finite)
            if capturing and not self._skips.ready(*noted):
                raise CaptureDeferred  # each replay fills anew what a capture allocates
            self._skips.note(*noted, found)

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


@dataclass
class SkipFlags:
    """One optimizer's step on the device, where it was the last skipped one.

    Attributes:
        names: of its gradients.
        has_loss: the last flag is the loss's.
        flags: for each gradient, true where it was not finite; all false otherwise.
    """

    names: tuple[str, ...]
    has_loss: bool
    flags: torch.Tensor


class LastSkips:
    """Keeps on the device, without a wait, which gradients were not finite in the last skipped step, of any optimizer.

    A captured step writes into the tensors that existed when it was captured.
    """

    def __init__(self) -> None:
        self._kept: dict[int, SkipFlags] = {}

    def ready(self, optimizer: int, gradients: Mapping[str, torch.Tensor], loss: torch.Tensor | None) -> bool:
        """Return whether :meth:`note` has tensors to write into, so that it may be captured."""
        kept = self._kept.get(optimizer)
        return kept is not None and (kept.names, kept.has_loss) == (tuple(gradients), loss is not None)

    def note(
        self, optimizer: int, gradients: Mapping[str, torch.Tensor], loss: torch.Tensor | None, found: torch.Tensor
    ) -> None:
        """Note a step; one that was not skipped (``found``, a float32 scalar, is 0) changes nothing.

        Args:
            optimizer: its ``id``.
            gradients: name → gradient, dense or sparse.
            loss: a number that is finite where the unscaled losses are, or None when they are not known.
            found: whether the step was skipped, on the device.
        """
        if not self.ready(optimizer, gradients, loss):
            flags = torch.zeros(len(gradients) + (loss is not None), dtype=torch.bool, device=found.device)
            self._kept[optimizer] = SkipFlags(tuple(gradients), loss is not None, flags)
        kept = self._kept[optimizer].flags
        with torch.no_grad():
            seen = _largest([*gradients.values(), *([] if loss is None else [loss.detach()])], found.device)
            kept.copy_(torch.where(found > 0, ~torch.isfinite(seen), kept))
            for other in self._kept.values():
                if other.flags is not kept:
                    other.flags.logical_and_(found == 0)

    def forget(self) -> None:
        """Clear the flags; the tensors stay."""
        for kept in self._kept.values():
            kept.flags.zero_()

    def report(self) -> NonFiniteReport | None:
        """Return what is known of the last skipped step, None where none was; waits for the device."""
        bad: list[str] = []
        finite: bool | None = None
        for kept in self._kept.values():
            flags = kept.flags.tolist()
            bad += [name for name, flag in zip(kept.names, flags, strict=False) if flag]
            if kept.has_loss:
                finite = finite is not False and not flags[-1]
        return NonFiniteReport(tuple(bad), finite) if bad else None


def _largest(tensors: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return each tensor's largest magnitude in one float32 tensor on ``device``; nan where one is nan."""
    values = [each if each.numel() else each.new_zeros(1) for each in map(dense, tensors)]
    norms = torch._foreach_norm(values, float("inf"))
    return torch.stack([norm.to(device, torch.float32, non_blocking=True) for norm in norms])
