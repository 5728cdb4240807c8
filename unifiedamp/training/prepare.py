"""``amp.prepare``: sorts models from optimizers, and binds what the backend returns."""

from __future__ import annotations

from typing import Any, TypeVar, TypeVarTuple

from ..backend import Backend
from ..errors import BackendUnavailableError, UnsupportedError, WrongObjectError
from .held_optimizers import hold, refuse_held
from .step_loop import StepLoop

A = TypeVar("A")
B = TypeVar("B")
Ts = TypeVarTuple("Ts")
"""What ``amp.prepare`` is given: one object, or two and further ones."""


def prepare_objects(backend: Backend, loop: StepLoop, objects: tuple[Any, ...], known: list[Any]) -> tuple[Any, ...]:
    """Return the prepared objects in the order given, and add the models among them to those known, each once.

    Raises:
        WrongObjectError: no objects, or ones of another framework.
        UnsupportedError: more optimizers than the backend takes.
        PrepareError: another session holds an optimizer.
    """
    if not objects:
        raise WrongObjectError("amp.prepare() needs a model, and the optimizers that train it")
    is_model = [backend.training.is_model(obj) for obj in objects]
    models = [obj for obj, yes in zip(objects, is_model, strict=True) if yes]
    optimizers = [obj for obj, yes in zip(objects, is_model, strict=True) if not yes]
    limit = backend.capabilities().feature("several_optimizers")
    if len(loop.order.slots) + len(optimizers) > 1 and not limit:
        raise UnsupportedError(f"backend {backend.name!r} takes one optimizer: {limit.reason}")
    refuse_held(optimizers, backend.spec)
    given = optimizers
    models, optimizers = _prepared(backend, models, optimizers)
    hold([*given, *optimizers], backend.spec)
    for optimizer in optimizers:
        loop.order.bind(optimizer)
    if loop.measure is not None:
        loop.measure.prepared()
    left = {True: iter(models), False: iter(optimizers)}
    known += [model for model in models if all(model is not each for each in known)]
    return tuple([next(left[yes]) for yes in is_model])


def _prepared(backend: Backend, models: list[Any], optimizers: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return what the backend prepares of these, one for each."""
    found = backend.training.prepare(models, optimizers)
    try:
        prepared, bound = map(list, found)
    except (TypeError, ValueError):
        prepared, bound = [], []
    if (len(prepared), len(bound)) != (len(models), len(optimizers)):
        raise BackendUnavailableError(
            f"backend {backend.name!r}: Training.prepare returned {found!r}, not the {len(models)} models and the "
            f"{len(optimizers)} optimizers, in two sequences in the order given"
        )
    return prepared, bound
