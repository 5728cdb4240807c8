"""Whether Keras's ``fit`` trains by an optimizer that the session prepared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from unifiedamp.backend import SessionSpec, errors

from .._types import Model, Optimizer
from .prepared_optimizer import PreparedOptimizer


def refuse_given(optimizer: Any, prepared: Iterable[PreparedOptimizer]) -> None:
    """Refuse an optimizer that ``amp.prepare`` was given, where it returned another one.

    Raises:
        WrongObjectError: naming the call to change.
    """
    inner = _inside(optimizer)
    for each in prepared:
        if each.inner is inner and each.outer is not optimizer:
            raise errors.WrongObjectError(
                f"model.compile: this {type(inner).__name__} was given to amp.prepare, which returned the optimizer "
                "that has the session's loss scale: model, optimizer = amp.prepare(model, optimizer), and then "
                "model.compile(optimizer=optimizer, ...)"
            )


def check_fit(model: Model, prepared: Iterable[PreparedOptimizer], spec: SessionSpec) -> None:
    """Refuse or warn where ``fit`` trains by an optimizer without the session's loss scale and windows.

    A model with its own ``train_step`` may call the session in it.

    Raises:
        WrongObjectError: see :func:`refuse_given`.
    """
    optimizer, prepared = getattr(model, "optimizer", None), list(prepared)
    if optimizer is None or any(each.outer is optimizer for each in prepared) or _trains_itself(model):
        return
    refuse_given(optimizer, prepared)
    if spec.loss_scale.enabled or spec.accumulate_steps > 1:
        spec.warn(
            f"model.fit: {type(_inside(optimizer)).__name__} was not prepared, so this session's loss scale and "
            "accumulation have no effect; compile the model with the optimizer that "
            "amp.prepare(model, optimizer) returned",
            errors.StepWarning,
        )


def _inside(optimizer: Any) -> Optimizer:
    """Return what a loss-scaling wrapper holds; another optimizer unchanged."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _trains_itself(model: Model) -> bool:
    return "train_step" in vars(model) or type(model).train_step is not tf.keras.Model.train_step
