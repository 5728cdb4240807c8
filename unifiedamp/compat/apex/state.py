"""What Apex kept for the whole process: the options and loss scalers of the last ``initialize``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from unifiedamp.errors import StepOrderError

from .options import Options

if TYPE_CHECKING:
    from .scaler import LossScaler


class AmpState:
    """Apex's ``_amp_state``.

    Attributes:
        opt_properties: the resolved options; None before ``initialize``.
        loss_scalers: one per loss id.
        verbosity: 0 prints nothing.
    """

    def __init__(self) -> None:
        self.opt_properties: Options | None = None
        self.loss_scalers: list[LossScaler] = []
        self.verbosity = 1

    def options(self, call: str) -> Options:
        """Return the resolved options.

        Raises:
            StepOrderError: ``initialize`` was not called.
        """
        if self.opt_properties is None:
            raise StepOrderError(
                f"{call}: nothing is initialized; call model, optimizer = amp.initialize(model, optimizer, "
                "opt_level=...) first"
            )
        return self.opt_properties

    def say(self, text: str) -> None:
        """Print, once per group of ranks, unless ``verbosity`` is 0."""
        ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        if self.verbosity and not (ranks and torch.distributed.get_rank()):
            print(text)


amp_state = AmpState()
