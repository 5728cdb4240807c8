"""Optimizers over parameters that a function of other code groups: ``AdamW(groups)``, ``groups = groups_of(model)``."""

from __future__ import annotations

import libcst as cst

from ..nodes import dotted
from ..source import Source
from ..training.aliases import Aliases
from ..training.reached import MODEL_WORDS


def by_function(source: Source, aliases: Aliases, assign: cst.Assign) -> list[str]:
    """Return the models from which the parameters come that an optimizer is made of, if they are called somewhere.

    Args:
        source: the file.
        aliases: who is who in it.
        assign: the line that makes the optimizer.
    """
    if not isinstance(assign.value, cst.Call) or not assign.value.args:
        return []
    first = dotted(assign.value.args[0].value)
    made = [one.value for one in source.assigns(first) if source.scope(one) is source.scope(assign)]
    args = [arg.value for one in made if isinstance(one, cst.Call) for arg in one.args]
    called = {aliases.of(call.func) for call in source.of(cst.Call)} - {None}
    if not first or _is_model(first) or aliases.of(assign.value.args[0].value) in called:
        return []  # the model itself, however it was made: `model = load(options.model)`
    names = [dotted(one) for one in args if dotted(one) and (aliases.of(one) in called or _is_model(dotted(one)))]
    return list(dict.fromkeys(names))


def _is_model(name: str) -> bool:
    return name.rpartition(".")[2] in MODEL_WORDS
