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
    """The plugin of :mod:`unifiedamp.integrations.lightning` for ``pytorch_lightning``.

    Args:
        session: a ``ua.Amp`` on torch; or the policy of one that is made on the trainer's device.
        **settings: further arguments of ``ua.Amp``, such as ``loss_scale``, unless it is given.

    Raises:
        WrongObjectError: a session of another backend.
        ConfigError: settings beside a session, or ones that are the trainer's own.
    """
