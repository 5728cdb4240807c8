"""Refuses parameters that were cast after ``prepare``: the optimizer and the policy are made for their dtypes then.

A step compares the dtypes of what it updates. Where the model's own forward pass fails first, its error is explained.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from unifiedamp.backend import errors

from ..layer_paths import plain_name
from .gradients import parameters

Optimizer = torch.optim.Optimizer


class ParamDtypes:
    """The dtypes that parameters had when they were prepared.

    Args:
        model_param: returns the model's parameter of a master weight, and any other parameter unchanged.
        name_of: returns a parameter's name.
    """

    def __init__(
        self, model_param: Callable[[torch.Tensor], torch.Tensor], name_of: Callable[[torch.Tensor], str]
    ) -> None:
        self._model_param, self._name_of = model_param, name_of
        self._of_models: list[tuple[torch.nn.Module, dict[str, torch.dtype]]] = []
        self._of_optimizers: dict[int, list[tuple[weakref.ref[torch.Tensor], torch.dtype]]] = {}

    def follow(self, models: Sequence[torch.nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Note the dtypes of further models and optimizers, as they are now."""
        for model in models:
            self._of_models.append((model, {name: param.dtype for name, param in model.named_parameters()}))
        for optimizer in optimizers:
            trained = map(self._model_param, parameters(optimizer))
            self._of_optimizers[id(optimizer)] = [(weakref.ref(param), param.dtype) for param in trained]

    def check(self, optimizer: Optimizer) -> None:
        """Refuse a step of parameters that have another dtype now; those that came to the optimizer since may have any.

        Raises:
            ParamDtypeError: naming the first one.
        """
        changed = {}
        for ref, dtype in self._of_optimizers.get(id(optimizer), ()):
            param = ref()
            if param is not None and param.dtype is not dtype:
                changed[id(param)] = dtype
        for held in parameters(optimizer) if changed else ():
            param = self._model_param(held)
            if id(param) in changed and held.grad is not None:
                where = f"amp.step({type(optimizer).__name__})"
                raise _refusal(where, self._name_of(held), changed[id(param)], param.dtype)

    def explain(self, error: object) -> None:
        """Raise what explains an error of torch's in a forward pass, if a parameter of a prepared model was cast.

        Raises:
            ParamDtypeError: naming the first one.
        """
        if not isinstance(error, RuntimeError) or isinstance(error, errors.AmpError):
            return
        for model, before in self._of_models:
            for name, param in model.named_parameters():
                dtype = before.get(name, param.dtype)
                if param.dtype is not dtype:
                    raise _refusal(type(model).__name__, plain_name(name), dtype, param.dtype) from error

    def explained(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step whose errors are explained: compiled ones enter regions without their Python."""

        @functools.wraps(step)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return step(*args, **kwargs)
            except RuntimeError as error:
                self.explain(error)
                raise

        return run


def _refusal(where: str, name: str, before: torch.dtype, now: torch.dtype) -> errors.ParamDtypeError:
    was, became = [str(each).removeprefix("torch.") for each in (before, now)]
    call = {"float32": "float", "float16": "half", "float64": "double"}.get(was, was)
    other = f", or use policy {became!r}" if became in ("float16", "bfloat16") else ""
    return errors.ParamDtypeError(
        f"{where}: parameter {name!r} is {became} now; it was {was} when it was prepared, which its optimizer and the "
        f"session's policy are made for: do not cast a prepared model by model.to(dtype), .float(), .half(), "
        f".bfloat16() or .double() (model.{call}() undoes it){other}"
    )
