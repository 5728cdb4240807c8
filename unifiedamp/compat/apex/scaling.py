"""``scale_loss``: the loss scaler of a loss id, and what happens to gradients when the context is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from unifiedamp.errors import ConfigError, WrongObjectError

from .objects import inner
from .scaler import LossScaler
from .state import amp_state
from .steps import Stash


@contextmanager
def scale_loss(
    loss: Any,
    optimizers: Any,
    loss_id: int = 0,
    model: Any = None,  # noqa: ARG001
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,  # noqa: ARG001
) -> Iterator[Any]:
    """Yield the loss times the loss scale, a float32 tensor to call ``backward()`` on.

    On exit, gradients are checked for inf and nan and divided by the scale, the scale is updated, and gradients from
    before are added. If something was not finite, the next ``optimizer.step()`` does nothing.

    Args:
        loss: a scalar tensor.
        optimizers: the initialized optimizer, or list of optimizers, that this loss gives gradients to.
        loss_id: which of the ``num_losses`` scales is used.
        model: not used, as in Apex.
        delay_unscale: leave the gradients scaled; more losses are added before ``optimizer.step()``.
        delay_overflow_check: no difference here: what was found is looked at in ``optimizer.step()`` anyway.

    Raises:
        StepOrderError: ``initialize`` was not called; a delayed loss had another scale.
        WrongObjectError: an optimizer that did not go through ``initialize``.
        ConfigError: no such ``loss_id``.
        LossError: the loss is not a scalar, or not connected to any parameter.
    """
    if not amp_state.options("scale_loss").enabled:
        yield loss
        return
    stashes = _stashes(optimizers)
    scaler = _scaler(stashes[0].scalers, loss_id)
    yield _scaled(loss, stashes, scaler)
    for stash in stashes:
        stash.collect()
    if not delay_unscale:
        _unscale(stashes, scaler)
        return
    for stash in stashes:
        stash.delay(scaler)


def master_params(optimizer: Any) -> Iterator[Any]:
    """Yield the parameters that the optimizer trains: float32 masters at O2, else the model's own."""
    optimizer = inner(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WrongObjectError(f"master_params takes an optimizer, got {type(optimizer).__name__}")
    for group in optimizer.param_groups:
        yield from group["params"]


def _scaled(loss: Any, stashes: Sequence[Stash], scaler: LossScaler) -> Any:
    """Return the loss times the scale, with the optimizers ready for its backward pass."""
    for stash in stashes:
        stash.check_delayed(scaler)
    session = stashes[0].session
    with session.autocast(enabled=False), session.scale_loss(loss, [stash.optimizer for stash in stashes]) as handle:
        scaled = scaler.scaled(handle.value)
    for stash in stashes:
        stash.before_backward()
    return scaled


def _unscale(stashes: Sequence[Stash], scaler: LossScaler) -> None:
    params = [param for stash in stashes for param in stash.with_gradients()]
    outcome = scaler.unscale(params) if params else None
    for stash in stashes:
        stash.after_unscale(scaler, outcome)


def _stashes(optimizers: Any) -> list[Stash]:
    optimizers = inner(optimizers)
    many: Iterable[Any] = optimizers if isinstance(optimizers, (list, tuple)) else (optimizers,)
    stashes = [_stash(optimizer) for optimizer in many]
    if not stashes:
        raise WrongObjectError("scale_loss: name the optimizer that this loss trains; the list is empty")
    if any(stash.session is not stashes[0].session for stash in stashes):
        raise WrongObjectError("scale_loss: these optimizers went through different calls of initialize; use one call")
    return stashes


def _stash(optimizer: Any) -> Stash:
    stash = getattr(optimizer, "_amp_stash", None)
    if isinstance(stash, Stash):
        return stash
    raise WrongObjectError(
        f"scale_loss: this {type(optimizer).__name__} did not go through amp.initialize; pass the optimizer that "
        "model, optimizer = amp.initialize(model, optimizer) returned as the second argument"
    )


def _scaler(scalers: Sequence[LossScaler], loss_id: object) -> LossScaler:
    if isinstance(loss_id, int) and not isinstance(loss_id, bool) and 0 <= loss_id < len(scalers):
        return scalers[loss_id]
    raise ConfigError(
        f"scale_loss: loss_id must be a whole number from 0 to {len(scalers) - 1}, got {loss_id!r}; "
        "tell amp.initialize how many there are: num_losses"
    )
