"""A session inside a Lightning ``Trainer``, as ``pytorch_lightning`` has it.

from unifiedamp.integrations.pytorch_lightning import AmpPrecision

trainer = Trainer(plugins=[AmpPrecision("mixed_float16")])
"""

from __future__ import annotations

from .versions import require

require("pytorch-lightning", "2.5.3", "unifiedamp.integrations.pytorch_lightning")

from pytorch_lightning.plugins.precision import Precision

from .trainer_precision import TrainerPrecision

__all__ = ["AmpPrecision"]


class AmpPrecision(TrainerPrecision, Precision):
    """The plugin of :mod:`unifiedamp.integrations.lightning` for ``pytorch_lightning``; the arguments are the same."""
