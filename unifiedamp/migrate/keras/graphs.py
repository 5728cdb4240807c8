"""Training that TensorFlow 1 runs as a graph: an Estimator's, or a monitored session's."""

from __future__ import annotations

import re

import libcst as cst

from ..nodes import dotted
from ..source import Source
from .words import REWRITE, calls_of

_GRAPH = re.compile(
    r"tensorflow\.(compat\.v1\.)?(estimator\..*|gradients|get_collection|global_variables_initializer"
    r"|trainable_variables|train\.(\w*Session|\w+Optimizer|get_global_step|get_or_create_global_step))"
)
_RUNS = re.compile(r"tensorflow\.(compat\.v1\.)?(estimator\.Estimator\w*|train\.\w*Session)")
_STEPS = ("minimize", "compute_gradients")


def graph_step(source: Source) -> cst.Call | None:
    """Return the call that makes a graph's training step out of a rewritten optimizer, or None."""
    if not calls_of(source, REWRITE) or source.methods("compile") or source.methods("fit"):
        return None
    nodes: list[cst.CSTNode] = [*source.of(cst.Attribute), *source.of(cst.Name)]
    if not any(_GRAPH.fullmatch(source.meaning(node)) for node in nodes):
        return None
    return next((call for name in _STEPS for call in source.methods(name)), None)


def runner(source: Source) -> str:
    """Return what runs the graph, as far as the file shows."""
    nodes: list[cst.CSTNode] = [*source.of(cst.Attribute), *source.of(cst.Name)]
    found = [dotted(node) for node in nodes if _RUNS.fullmatch(source.meaning(node))]
    if any(".estimator." in name for name in found):
        return "an Estimator"
    return found[0] if found else "a session of another file"
