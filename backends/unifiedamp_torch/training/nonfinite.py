"""What is known of the last skipped step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from unifiedamp.backend import NonFiniteReport

from ..recording.reductions import dense


def non_finite(gradients: Mapping[str, torch.Tensor], loss: torch.Tensor | None) -> NonFiniteReport:
    """Look at gradients and at the unscaled loss; waits for the device.

    Args:
        gradients: name → gradient of the skipped step, dense or sparse.
        loss: the last unscaled loss, or None when it is not known.
    """
    bad = [name for name, grad in gradients.items() if not bool(torch.isfinite(dense(grad)).all())]
    return NonFiniteReport(tuple(bad), None if loss is None else bool(torch.isfinite(loss)))


@dataclass
class Kept:
    """What is on the device of one optimizer's step, where it was the last that was skipped.

    Attributes:
        names: of its gradients.
        has_loss: the last flag is the loss's.
        flags: for each of them, true where it was not finite; all false else.
    """

    names: tuple[str, ...]
    has_loss: bool
    flags: torch.Tensor


class LastSkips:
    """Keeps on the device, without a wait, which gradients were not finite in the last skipped step, of any optimizer.

    A captured step writes into the tensors that were there when it was captured.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}

    def ready(self, optimizer: int, gradients: Mapping[str, torch.Tensor], loss: torch.Tensor | None) -> bool:
        """Tell whether :meth:`note` has tensors to write into, so that it may be captured."""
        kept = self._kept.get(optimizer)
        return kept is not None and (kept.names, kept.has_loss) == (tuple(gradients), loss is not None)

    def note(
        self, optimizer: int, gradients: Mapping[str, torch.Tensor], loss: torch.Tensor | None, found: torch.Tensor
    ) -> None:
        """Note a step; one that was not skipped (``found``, a float32 scalar, is 0) leaves what was kept.

        Args:
            optimizer: tells optimizers apart.
            gradients: name → gradient, dense or sparse.
            loss: the last unscaled loss, or None when it is not known.
            found: whether the step was skipped, on the device.
        """
        if not self.ready(optimizer, gradients, loss):
            flags = torch.zeros(len(gradients) + (loss is not None), dtype=torch.bool, device=found.device)
            self._kept[optimizer] = Kept(tuple(gradients), loss is not None, flags)
        kept = self._kept[optimizer].flags
        with torch.no_grad():
            seen = _largest([*gradients.values(), *([] if loss is None else [loss.detach()])], found.device)
            kept.copy_(torch.where(found > 0, ~torch.isfinite(seen), kept))
            for other in self._kept.values():
                if other.flags is not kept:
                    other.flags.logical_and_(found == 0)

    def forget(self) -> None:
        """Forget what is kept; the tensors stay."""
        for kept in self._kept.values():
            kept.flags.zero_()

    def report(self) -> NonFiniteReport | None:
        """Return what is known of the last skipped step, None where nothing was noted; waits for the device."""
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
