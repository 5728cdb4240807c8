"""Refuses parameters that come into prepared models after ``prepare`` and that no Trainer has: they would not train.

A step compares the blocks' children with those of the last look; Gluon tells of none that is added or exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unifiedamp.backend import errors

from .._types import Block, Parameter
from ..layer_paths import named_parameters, walk
from .prepared_optimizers import PreparedOptimizers


class LateParams:
    """Follows which parameters the prepared models have.

    Args:
        optimizers: the session's Trainers.
    """

    def __init__(self, optimizers: PreparedOptimizers) -> None:
        self._optimizers = optimizers
        self._models: list[Block] = []
        self._before: list[dict[str, Parameter]] = []  # of each model, when it was prepared
        self._containers: list[Block] = []
        self._seen: list[object] = []
        self._late: list[tuple[str, Parameter]] = []

    def follow(self, models: Sequence[Block]) -> None:
        """Follow further models, with the parameters that they have now. Idempotent."""
        new = [model for model in models if all(model is not known for known in self._models)]
        self._models += new
        self._before += [dict(named_parameters(model)) for model in new]
        self._look()

    def check(self) -> None:
        """Refuse a step while late parameters have gradients that no Trainer applies, and drop those.

        Raises:
            PrepareError: naming the parameters.
        """
        if self._present() != self._seen:
            self._look()
        if not self._late:
            return
        owned = self._owned()
        found = [(name, param) for name, param in self._late if id(param) not in owned and _has_gradient(param)]
        for _, param in found:
            for data in param._data or ():
                data._fresh_grad = False
        if found:
            raise errors.PrepareError(
                f"amp.step: {errors.first_names(name for name, _ in found)} came into the model after amp.prepare, and "
                "no Trainer of the session has them, so they would not train; make a gluon.Trainer over them and "
                "prepare it (amp.prepare(model, trainer)), freeze them (grad_req = 'null'), or make the Trainer and "
                "call amp.prepare once the model has all of its layers"
            )

    def _owned(self) -> set[int]:
        return {id(param) for prepared in self._optimizers for param in prepared.trainer._params}

    def _present(self) -> list[object]:
        return [child for block in self._containers for child in block._children.values()]

    def _look(self) -> None:
        """Find the blocks, and the parameters that were not there before."""
        blocks = [(model, block) for model in self._models for _, block in walk(model)]
        self._containers = [block for model, block in blocks if block is model or block._children]
        self._seen = self._present()
        self._late = list(self._find())

    def _find(self) -> Iterator[tuple[str, Parameter]]:
        """Yield late parameters; not those in the place of one that no Trainer trained either."""
        owned = self._owned()
        for model, before in zip(self._models, self._before, strict=True):
            known = {id(param) for param in before.values()}
            for name, param in named_parameters(model):
                if id(param) not in known and (name not in before or id(before[name]) in owned):
                    yield name, param


def _has_gradient(param: Parameter) -> bool:
    """Return whether a backward pass wrote the gradient of a parameter that is not frozen."""
    return param.grad_req != "null" and any(data._fresh_grad for data in param._data or ())
