"""Which backend a file tells Keras to run on: a session is TensorFlow's."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ..nodes import dotted, literal
from ..source import Source
from ..work import Work

_VARIABLE = "KERAS_BACKEND"


def block_other(work: Work) -> None:
    """Block where Keras may run on another backend than TensorFlow."""
    for node, value in _chosen(work.source):
        if literal(value) != "tensorflow":
            what = f"Keras runs on the backend {work.source.code(value)}, and a session is TensorFlow's"
            write = 'KERAS_BACKEND="tensorflow"; on torch, train the model in a torch loop with ua.Amp("torch")'
            work.block(node, what, write)


def _chosen(source: Source) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield the lines that choose Keras's backend, with the value."""
    for assign in source.of(cst.Assign):
        target = assign.targets[0].target
        if isinstance(target, cst.Subscript) and _names_it(target.slice[0].slice):
            yield assign, assign.value
    for call in source.of(cst.Call):
        last, values = dotted(call.func).rpartition(".")[2], [arg.value for arg in call.args]
        if last == "setdefault" and len(values) == 2 and literal(values[0]) == _VARIABLE:
            yield call, values[1]
        elif last == "set_backend" and len(values) == 1 and "keras" in source.meaning(call.func):
            yield call, values[0]


def _names_it(slice_: cst.BaseSlice) -> bool:
    return isinstance(slice_, cst.Index) and literal(slice_.value) == _VARIABLE
