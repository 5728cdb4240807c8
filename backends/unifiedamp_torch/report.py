"""What is known of the last skipped step."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from unifiedamp.backend import NonFiniteReport


def non_finite(gradients: Mapping[str, torch.Tensor], loss: torch.Tensor | None) -> NonFiniteReport:
    """Look at gradients and at the unscaled loss; waits for the device.

    Args:
        gradients: name → gradient of the skipped step, dense or sparse.
        loss: the last unscaled loss, or None when it is not known.
    """
    bad = [name for name, grad in gradients.items() if not bool(torch.isfinite(_values(grad)).all())]
    return NonFiniteReport(tuple(bad), None if loss is None else bool(torch.isfinite(loss)))


def _values(grad: torch.Tensor) -> torch.Tensor:
    return grad._values() if grad.is_sparse else grad
