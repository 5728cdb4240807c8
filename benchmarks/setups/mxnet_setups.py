"""MXNet on a CPU: float32 and ``amp.init("bfloat16")``, imperative and hybridized."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from native import mxnet_amp as native
from recipes import Parts, Recipe
from timing import Loop

from . import Setup, ours


def setups(recipe: Recipe) -> dict[str, Setup]:
    """Return the configurations, in order."""
    low = native.low()
    return {
        "fp32 eager": Setup("float32", "float32", stays=True),
        "fp32 + hybridize": Setup("hybridize(static_alloc, static_shape)", "float32", True, stays=True),
        "best native": Setup("amp.init, hybridize", low, True, stays=True),
        **ours(low),
        "native AMP": Setup("amp.init", low),
    }


def build(parts: Parts, setup: Setup) -> Loop:
    """Return a hand-written loop."""
    with native.scope(setup.policy):
        model = parts.model()
        optimizer = parts.optimizer(model)
        x, y = native.tensor(parts.images), native.tensor(parts.labels)
        step: Any = native.train_step(model, optimizer, parts.loss_fn, None, setup.compiled)
    around = nullcontext if setup.policy == "float32" else native.around
    return Loop(lambda: step(x, y), native.finish, around)
