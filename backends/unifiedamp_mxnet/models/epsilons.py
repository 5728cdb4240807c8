"""The epsilons of blocks and optimizers, and the dtypes that they are added in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unifiedamp.backend import Policy, match_layers, recording

from .._types import Block, Trainer
from ..layer_paths import walk

NAMES = ("eps", "epsilon", "_eps", "_epsilon", "variance_epsilon")
_NATIVE = "mxnet.gluon."
"""MXNet's lists have its own normalizing operators compute in float32."""


def epsilons(models: Iterable[Block], trainers: Iterable[Trainer], policy: Policy) -> Iterator[recording.Epsilon]:
    """Yield the epsilons of blocks, then those of Trainers' optimizers (their parameters are float32)."""
    for model in models:
        blocks = dict(walk(model))
        dtypes = match_layers(policy.layer_overrides, blocks) if policy.layer_overrides else {}
        for path, block in blocks.items():
            native = type(block).__module__.startswith(_NATIVE)
            dtype = "float32" if native else _nearest(path, dtypes) or policy.compute_dtype
            for name, value in _of(block):
                yield recording.Epsilon(path, name, value, dtype)
    for trainer in trainers:
        for name, value in _of(trainer.optimizer):
            yield recording.Epsilon(type(trainer.optimizer).__name__, name, value, "float32")


def _of(obj: object) -> Iterator[tuple[str, float]]:
    for name in NAMES:
        value = vars(obj).get(name)
        if isinstance(value, float) and value > 0:
            yield name, value


def _nearest(path: str, dtypes: dict[str, str]) -> str | None:
    while path and path not in dtypes:
        path = path.rpartition(".")[0]
    return dtypes.get(path)
