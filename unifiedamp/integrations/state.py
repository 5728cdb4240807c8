"""A session's state inside a trainer's checkpoint, in a layout that the trainer's own scaler loads too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..checkpoint.session_state import to_grad_scaler_state
from ..errors import CheckpointError, StateWarning
from ..session import Amp

SESSION, MASTERS = "unifiedamp", "master_weights"


def dump(amp: Amp, models: Sequence[torch.nn.Module]) -> dict[str, Any]:
    """Return the state of a session, master weights included, beside that of a ``GradScaler``."""
    state = amp.state_dict()
    saved: dict[str, Any] = {**to_grad_scaler_state(state), SESSION: state}
    if amp.backend.spec.master_weights:
        saved[MASTERS] = [_tensors(amp.master_weights(model)) for model in models]
    return saved


def load(amp: Amp, models: Sequence[torch.nn.Module], saved: Mapping[str, Any]) -> None:
    """Load what :func:`dump` returned, or the state of a ``GradScaler``.

    Raises:
        CheckpointError: see ``Amp.load_state_dict``; master weights of other models.
    """
    amp.load_state_dict(saved.get(SESSION, saved))
    if not amp.backend.spec.master_weights:
        return
    masters = saved.get(MASTERS)
    if masters is None:
        warn_lacking(amp, "master weights: they restart from the model's rounded ones")
        return
    if len(masters) != len(models):
        raise CheckpointError(f"the checkpoint has master weights of {len(masters)} models; this run has {len(models)}")
    for model, weights in zip(models, masters, strict=True):
        amp.load_master_weights(model, {name: value.numpy() for name, value in weights.items()})


def warn_lacking(amp: Amp, what: str) -> None:
    """Warn of a checkpoint that lacks part of a session's state."""
    amp.backend.spec.warn(f"the checkpoint holds no {what}", StateWarning)


def warn_lacking_scale(amp: Amp) -> None:
    """Warn of a checkpoint without a loss scale; does nothing in a session that scales no loss."""
    if amp.loss_scale_settings.enabled:
        warn_lacking(amp, f"loss scale: the run goes on from {amp.loss_scale:g}")


def _tensors(weights: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value.copy()) for name, value in weights.items()}
