"""Loss scales as Keras writes them, and as a session takes them."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, dotted, literal
from ..source import Source
from ..work import Names

KERAS_SCALE = "2.0**15"


def experimental_scale(source: Source, names: Names, given: cst.BaseExpression | None) -> str:
    """Return the code of a ``loss_scale=`` of the experimental API."""
    if given is None or literal(given) == "dynamic":
        return dynamic_scale(names)
    if isinstance(given, cst.Call):
        name = dotted(given.func).rpartition(".")[2]
        if name == "FixedLossScale":
            return quoted(source, given.args[0].value)
        if name == "DynamicLossScale":
            first, steps = argument(given, "initial_loss_scale", 0), argument(given, "increment_period", 1)
            return dynamic_scale(names, quoted(source, first), quoted(source, steps))
    return quoted(source, given)


def wrapper_scale(source: Source, names: Names, call: cst.Call) -> str:
    """Return the code of the loss scale that a ``LossScaleOptimizer`` asks for."""
    experimental = argument(call, "loss_scale", 1 if ".experimental." in source.meaning(call.func) else None)
    if experimental is not None:
        return experimental_scale(source, names, experimental)
    start, steps = argument(call, "initial_scale", 2), argument(call, "dynamic_growth_steps", 3)
    if literal(argument(call, "dynamic", 1)) is False:
        return quoted(source, start)
    return dynamic_scale(names, quoted(source, start), quoted(source, steps))


def dynamic_scale(names: Names, start: str = "", steps: str = "") -> str:
    """Return the code of a dynamic scale; it begins where Keras's does, unless ``start`` says otherwise."""
    growth = f", growth_interval={steps}" if steps and steps != "None" else ""
    start = KERAS_SCALE if start in ("", "None") else start
    return f"{names.ua}.DynamicLossScale(initial_scale={start}{growth})"


def quoted(source: Source, node: cst.CSTNode | None) -> str:
    """Return the code of an expression, text in double quotes; ``""`` where there is none."""
    value = literal(node) if isinstance(node, cst.BaseExpression) else None
    return f'"{value}"' if isinstance(value, str) else source.code(node) if node is not None else ""
