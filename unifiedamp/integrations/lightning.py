"""A session inside a Lightning ``Trainer``, as ``lightning.pytorch`` has it.

from unifiedamp.integrations.lightning import AmpPrecision

trainer = Trainer(plugins=[AmpPrecision("mixed_float16")])
"""

from __future__ import annotations

from .versions import require

require("lightning", "2.5.3", "unifiedamp.integrations.lightning")

from lightning.pytorch.plugins.precision import Precision

from .trainer_precision import TrainerPrecision

__all__ = ["AmpPrecision"]


class AmpPrecision(TrainerPrecision, Precision):
    """A precision plugin that trains by a session.

    Fused optimizers are clipped, clipping in manual optimization sees true gradients, and schedulers are held on
    skipped steps. Several optimizers share one scale, which each optimizer step updates. In manual optimization
    ``opt.step()`` returns the ``StepResult``.

    Args:
        session: a ``ua.Amp`` on torch; or the policy of one that is made on the trainer's device.
        **settings: further arguments of ``ua.Amp``, such as ``loss_scale``, unless it is given.

    Raises:
        WrongObjectError: a session of another backend.
        ConfigError: settings beside a session, or ones that are the trainer's own.
    """
