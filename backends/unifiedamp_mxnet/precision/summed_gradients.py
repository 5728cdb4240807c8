"""Graphs whose gradients MXNet sums wrongly: a cast's backward pass writes over a sum that others have begun.

From 8 uses of a tensor on, a graph adds its gradients in place (``MXNET_EXEC_INPLACE_GRAD_SUM_CAP``), and ``amp_cast``
and ``amp_multicast`` do not add. Equal operators on the same tensors are one, since MXNet merges them.
"""

from __future__ import annotations

import json
import os

from .._types import Symbol

CASTS = frozenset(("amp_cast", "amp_multicast"))


def wrongly_summed(graph: Symbol) -> str:
    """Return the name of a tensor whose gradient would be wrong; an empty string where there is none."""
    nodes = json.loads(graph.tojson(remove_amp_cast=False))["nodes"]
    limit = int(os.environ.get("MXNET_EXEC_INPLACE_GRAD_SUM_CAP", "8"))
    merged: dict[object, int] = {}
    places: list[int] = []  # of each node, that of the first one that equals it
    uses: dict[tuple[int, int], set[int]] = {}
    cast: set[tuple[int, int]] = set()
    for place, node in enumerate(nodes):
        inputs = [(places[source], output) for source, output, *_ in node["inputs"]]
        same = (node["op"], *inputs, *sorted(node.get("attrs", {}).items())) if inputs else place
        places.append(merged.setdefault(same, place))
        for entry in inputs:
            uses.setdefault(entry, set()).add(places[place])
        if node["op"] in CASTS:
            cast.update(inputs)
    return next((str(nodes[entry[0]]["name"]) for entry in sorted(cast) if len(uses[entry]) >= limit), "")
