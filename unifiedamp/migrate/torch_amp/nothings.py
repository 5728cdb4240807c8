"""Contexts that do nothing: ``nullcontext``, and classes and generators of the file in its place."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ..nodes import dotted
from ..source import Source

_NOTHING = ("nullcontext", "suppress", "ExitStack", "dummy_context", "null_context", "nullcontext_")


def does_nothing(source: Source, made: cst.BaseExpression) -> bool:
    """Whether what an expression names makes a context that does nothing."""
    return dotted(made).rpartition(".")[2] in _NOTHING or is_own(source, made)


def is_own(source: Source, made: cst.BaseExpression) -> bool:
    """Whether this is a class, or a generator, of the file that makes a context that does nothing."""
    name = dotted(made)
    nodes: list[cst.ClassDef | cst.FunctionDef] = [*source.of(cst.ClassDef), *source.of(cst.FunctionDef)]
    found = [one for one in nodes if one.name.value == name and source.scope(one) is source.root(made)]
    if len(found) != 1 or source.assigns(name) or name in source.imports:
        return False
    one = found[0]
    return _is_null_class(one) if isinstance(one, cst.ClassDef) else _is_null_generator(source, one)


def _is_null_class(node: cst.ClassDef) -> bool:
    """Whether a class has ``__enter__`` and ``__exit__`` that do nothing, and nothing else."""
    if node.decorators or node.keywords or any(dotted(base.value) != "object" for base in node.bases):
        return False
    methods = [one for one in node.body.body if isinstance(one, cst.FunctionDef)]
    names = {one.name.value for one in methods}
    rest = [one for one in node.body.body if one not in methods]
    return (
        {"__enter__", "__exit__"} <= names <= {"__init__", "__enter__", "__exit__"}
        and not any(one.decorators or one.asynchronous for one in methods)
        and all(_is_quiet(one.body.body, ("None", "False", "self")) for one in methods if one.name.value != "__exit__")
        and all(_is_quiet(one.body.body, ("None", "False")) for one in methods if one.name.value == "__exit__")
        and _is_quiet(rest, ())
    )


def _is_null_generator(source: Source, node: cst.FunctionDef) -> bool:
    """Whether a function is ``@contextmanager``, and only says ``yield``."""
    decorators = [source.meaning(one.decorator) for one in node.decorators]
    smalls = _smalls(node.body.body)
    if decorators != ["contextlib.contextmanager"] or node.asynchronous or smalls is None:
        return False
    yields = [one for one in smalls if isinstance(one, cst.Expr) and isinstance(one.value, cst.Yield)]
    given = [one.value.value for one in yields if isinstance(one.value, cst.Yield) and one.value.value is not None]
    rest = [one for one in smalls if one not in yields]
    return len(yields) == 1 and all(dotted(one) == "None" for one in given) and all(map(_says_nothing, rest))


def _is_quiet(body: Sequence[cst.CSTNode], returned: Sequence[str]) -> bool:
    """Whether statements do nothing but return one of some names."""
    smalls = _smalls(body)
    if smalls is None:
        return False
    values = [one.value for one in smalls if isinstance(one, cst.Return)]
    rest = [one for one in smalls if not isinstance(one, cst.Return)]
    return all(one is None or dotted(one) in returned for one in values) and all(map(_says_nothing, rest))


def _smalls(body: Sequence[cst.CSTNode]) -> list[cst.BaseSmallStatement] | None:
    """Return the simple statements of a body; None if it has others."""
    found: list[cst.BaseSmallStatement] = []
    for one in body:
        if isinstance(one, cst.SimpleStatementLine):
            found += one.body
        elif isinstance(one, cst.BaseSmallStatement):  # behind the colon: `def f(self): pass`
            found.append(one)
        else:
            return None
    return found


def _says_nothing(small: cst.BaseSmallStatement) -> bool:
    texts = cst.SimpleString | cst.ConcatenatedString | cst.Ellipsis
    return isinstance(small, cst.Pass) or (isinstance(small, cst.Expr) and isinstance(small.value, texts))
