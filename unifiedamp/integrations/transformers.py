"""A session inside Hugging Face's ``Trainer``.

from unifiedamp.integrations.transformers import attach

trainer = attach(Trainer(model, args, train_dataset=data), "mixed_float16")
trainer.train()
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConfigError, WrongObjectError
from ..policy import Policy
from ..session import Amp
from .versions import require

require("transformers", "4.49", "unifiedamp.integrations.transformers")

from accelerate.utils import SCALER_NAME
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint

from . import accelerate, state
from .session_source import SessionSource, refuse_strategy

__all__ = ["attach"]

TrainerType = TypeVar("TrainerType", bound=Any)


def attach(trainer: TrainerType, session: Amp | Policy | str | None = None, **settings: Any) -> TrainerType:
    """Make a ``Trainer``, of any subclass, train by a session; return it. Call it before ``train`` and ``evaluate``.

    ``trainer.accelerator.amp`` is the session. Checkpoints hold its state in ``scaler.pt``, which a ``Trainer`` with
    ``fp16=True`` reads too.

    Args:
        trainer: the trainer.
        session: a ``ua.Amp`` on torch; or the policy of one that is made on the trainer's device.
        **settings: further arguments of ``ua.Amp``, such as ``loss_scale``, unless it is given.

    Raises:
        WrongObjectError: no ``Trainer``, or a session of another backend.
        ConfigError: precision set twice (``fp16`` or ``bf16`` of ``TrainingArguments``); settings beside a session.
        UnsupportedError: DataParallel, DeepSpeed, FSDP and other ways of distributing that the session cannot follow.
    """
    if not isinstance(trainer, Trainer):
        raise WrongObjectError(f"attach: expected a transformers.Trainer, got {type(trainer).__name__}")
    _check(trainer.args)
    source = SessionSource("attach", session, settings)
    accelerate.attach_source(trainer.accelerator, source)
    create = trainer.create_accelerator_and_postprocess

    def create_and_attach(*args: Any, **kwargs: Any) -> None:
        create(*args, **kwargs)
        accelerate.attach_source(trainer.accelerator, source)

    trainer.create_accelerator_and_postprocess = create_and_attach  # a hyperparameter search makes new ones
    _warn_when_resumed(trainer)
    return trainer


def _warn_when_resumed(trainer: Any) -> None:
    """Make ``trainer.train`` warn of a checkpoint without a loss scale, which the trainer takes for a new start."""
    train = trainer.train

    @functools.wraps(train)
    def train_and_warn(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        path = (
            get_last_checkpoint(trainer.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        )
        if path and not (Path(path) / SCALER_NAME).exists():
            state.warn_lacking_scale(trainer.accelerator.amp)
        return train(resume_from_checkpoint, *args, **kwargs)

    trainer.train = train_and_warn


def _check(args: Any) -> None:
    for name in ("fp16", "bf16"):
        if getattr(args, name, False):
            raise ConfigError(
                f"attach: precision is set twice: the session's policy, and TrainingArguments({name}=True)"
            )
    if args.n_gpu > 1:
        refuse_strategy("attach", f"DataParallel over {args.n_gpu} GPUs", "torchrun, or one GPU (CUDA_VISIBLE_DEVICES)")
