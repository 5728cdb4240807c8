"""A workload's settings as its source has them: read, not imported."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

PART = "make_model"
"""A class with this method is a workload."""


def assignments_of(target: str) -> dict[str, str]:
    """Return ``NAME=VALUE`` → its type, for each setting of ``FILE.py[:NAME]`` or of a configuration's workload.

    Of a setting with a few fixed values each is returned, of others the default. What cannot be read has none.
    """
    try:
        path, name = _file(target)
        body = ast.parse(path.read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError):
        return {}
    return dict(_assignments(body, name))


def _file(target: str) -> tuple[Path, str]:
    if target.endswith(".toml"):
        found = str(tomllib.loads(Path(target).read_text(encoding="utf-8")).get("workload", ""))
        path, name = _split(found)
        return Path(target).parent / path, name
    path, name = _split(target)
    return Path(path), name


def _split(target: str) -> tuple[str, str]:
    file, _, name = (target, "", "") if target.endswith(".py") else target.rpartition(":")
    return file, name


def _assignments(body: list[ast.stmt], wanted: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef) and (node.name == wanted if wanted else _is_workload(node)):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield from _texts(field.target.id, field.annotation, field.value)
            yield from _arguments(next((each for each in _functions(node) if each.name == "__init__"), None))
        if isinstance(node, ast.FunctionDef) and node.name == (wanted or "workload"):
            yield from _arguments(node)


def _functions(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (each for each in node.body if isinstance(each, ast.FunctionDef))


def _is_workload(node: ast.ClassDef) -> bool:
    return any(each.name == PART for each in _functions(node))


def _arguments(function: ast.FunctionDef | None) -> Iterator[tuple[str, str]]:
    """Yield the settings that are arguments with a default."""
    if function is None:
        return
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    pairs = [*zip(positional[len(positional) - len(args.defaults) :], args.defaults, strict=True)]
    for argument, default in [*pairs, *zip(args.kwonlyargs, args.kw_defaults, strict=True)]:
        yield from _texts(argument.arg, argument.annotation, default)


def _texts(name: str, annotation: ast.expr | None, default: ast.expr | None) -> Iterator[tuple[str, str]]:
    about = ast.unparse(annotation) if annotation else ""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Literal"):
        values = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    else:
        values = [] if default is None else [default]
    for value in values:
        if isinstance(value, ast.Constant) and value.value is not None:
            yield f"{name}={_text(value.value)}", about


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
