"""Matching the layers and weights of two models: by name, else by order, kind and size."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from .nonfinite_origin import layer_of, run_order

FAMILIES = {
    "linear": "dense", "relu": "relu", "conv1d": "conv", "conv2d": "conv", "conv3d": "conv",
    "batchnorm": "batch_norm", "batchnorm1d": "batch_norm", "batchnorm2d": "batch_norm", "batchnorm3d": "batch_norm",
    "batchnormalization": "batch_norm", "syncbatchnorm": "batch_norm", "layernorm": "layer_norm",
    "layernormalization": "layer_norm", "maxpool2d": "max_pool", "maxpooling2d": "max_pool", "maxpool1d": "max_pool",
    "maxpooling1d": "max_pool", "avgpool2d": "mean_pool", "averagepooling2d": "mean_pool", "leakyrelu": "leaky_relu",
}  # fmt: skip
"""Class of a layer, in lower case → what it is called whatever the framework."""
ROLES = {
    "gamma": "weight", "kernel": "weight", "embeddings": "weight", "beta": "bias", "running_mean": "mean",
    "moving_mean": "mean", "running_var": "variance", "moving_variance": "variance",
}  # fmt: skip
"""Name of a weight → what it is called whatever the framework."""
ORDER = ("weight", "bias", "mean", "variance")

Pairs = list[tuple[str, str]]


def kind_of(row: Mapping[str, Any]) -> str:
    """Return what a layer is, whatever the framework; one that ends with an activation function counts as that."""
    function = str(row.get("function", ""))
    if function:
        return function.lower().replace("_", "")
    kind = str(row["kind"]).lower()
    return FAMILIES.get(kind, kind)


def role_of(name: str) -> str:
    """Return what a weight is, whatever the framework."""
    own = name.rpartition(".")[2]
    if own in ROLES:
        return ROLES[own]
    return next(
        (role for part, role in (("bias", "bias"), ("kernel", "weight"), ("weight", "weight")) if part in own), own
    )


def size_of(sketched: Mapping[str, Any]) -> int:
    """Return the number of elements of a sketched tensor."""
    return math.prod(sketched["shape"])


def layers_in_order(compared: Mapping[str, Any]) -> list[str]:
    """Return the paths of layers in the order of their last output."""
    last = {row["layer"]: place for place, row in enumerate(compared["layers"]) if row["place"] == "output"}
    return sorted(last, key=last.__getitem__)


def weights_in_order(compared: Mapping[str, Any]) -> list[str]:
    """Return the names of weights in the order in which their layers ran; of one layer, in that of ``ORDER``."""
    names = sorted(compared["before"], key=lambda name: ORDER.index(role) if (role := role_of(name)) in ORDER else 9)
    first: dict[str, int] = {}
    for place, name in enumerate(compared["before"]):
        first.setdefault(layer_of(name), place)
    return run_order(sorted(names, key=lambda name: first[layer_of(name)]), layers_in_order(compared))


def pair_weights(a: Mapping[str, Any], b: Mapping[str, Any]) -> Pairs:
    """Return the weights of two models that belong together, by order, role and size."""
    ours, others = weights_in_order(a), weights_in_order(b)
    keys = [
        tuple((role_of(name), size_of(each["before"][name])) for name in names)
        for each, names in ((a, ours), (b, others))
    ]
    return [(ours[i], others[j]) for i, j in aligned(*keys)]


def pair_rows(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], names: bool) -> list[tuple[int, int]]:
    """Return which rows of layers belong together.

    Args:
        a, b: the rows of a step of each run, in order.
        names: by the layers' names; else by kind and size, and the batch with the batch.
    """
    if names:
        return aligned(*(tuple((row["layer"], row["place"]) for row in rows) for rows in (a, b)))
    keys = [
        tuple(
            ("batch",) if not index and row["place"] == "input"
            else ("model" if not row["layer"] else kind_of(row), row["place"], size_of(row))
            for index, row in enumerate(rows)
        )
        for rows in (a, b)
    ]  # fmt: skip
    return aligned(*keys)


@functools.lru_cache(maxsize=16)
def aligned(a: tuple[Hashable, ...], b: tuple[Hashable, ...]) -> list[tuple[int, int]]:
    """Return the places of a long common subsequence in each of two sequences."""
    if a == b:
        return [(place, place) for place in range(len(a))]
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return [(block.a + k, block.b + k) for block in blocks for k in range(block.size)]
