"""Models whose ``compile`` passes no optimizer to ``super().compile``: Keras then uses its default optimizer."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, dotted, keywords, parameters, walk
from ..source import Source


def keeps_optimizer(source: Source, call: cst.Call, model: str) -> cst.FunctionDef | None:
    """Return the ``compile`` of a model's class that does not give its optimizer to Keras's, or None.

    Args:
        source: the file.
        call: the call of ``model.compile``.
        model: the model's code.
    """
    made = [one.value for one in source.assigns(model) if isinstance(one.value, cst.Call)]
    names = {dotted(one.func) for one in made}
    for owner in source.of(cst.ClassDef):
        own = _method(owner) if owner.name.value in names else None
        if own is not None and not _hands_on(own, call):
            return own
    return None


def _method(owner: cst.ClassDef) -> cst.FunctionDef | None:
    body = owner.body.body if isinstance(owner.body, cst.IndentedBlock) else ()
    return next((one for one in body if isinstance(one, cst.FunctionDef) and one.name.value == "compile"), None)


def _hands_on(own: cst.FunctionDef, call: cst.Call) -> bool:
    """Whether Keras's ``compile`` gets the optimizer: by its parameter, or in what is handed on as it comes."""
    inner = [one for one in walk(own.body) if isinstance(one, cst.Call) and is_super(one)]
    positional = [arg for arg in call.args if arg.keyword is None]
    names = [name for name in parameters(own) if name != "self"]
    if positional and names:
        name = names[0]
        return any(dotted(given) == name for one in inner if (given := argument(one, "optimizer", 0)) is not None)
    if "optimizer" in names:
        return any(argument(one, "optimizer", 0) is not None for one in inner)
    return "optimizer" not in keywords(call) or any("*" in keywords(one) for one in inner)


def is_super(call: cst.Call) -> bool:
    """Whether a call is ``super().compile(...)``."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "compile":
        return False
    return isinstance(func.value, cst.Call) and dotted(func.value.func) == "super"
