"""Several files read as one program: what a name in one of them means in another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath

import libcst as cst

from .nodes import dotted
from .source import Source

Link = tuple[str, str]
"""A file, and a name in it; no name for the file itself."""


def links(sources: Mapping[str, Source]) -> dict[tuple[str, str], Link]:
    """Return (file, name as it is used there) → what of another of these files an import binds to it."""
    found: dict[tuple[str, str], Link] = {}
    for path, source in sources.items():
        for name, link in _imported(path, source, list(sources)):
            if link[0] != path:
                found[(path, name)] = link
    return found


def connected(sources: Mapping[str, Source]) -> list[list[str]]:
    """Return the files in groups that import each other, directly or not."""
    group = {path: {path} for path in sources}
    for (path, _), (other, _) in links(sources).items():
        joined = group[path] | group[other]
        group |= dict.fromkeys(joined, joined)
    return [sorted(one) for one in {id(each): each for each in group.values()}.values()]


def _imported(path: str, source: Source, paths: list[str]) -> Iterator[tuple[str, Link]]:
    for plain in source.of(cst.Import):
        for alias in plain.names:
            file = _file(paths, path, dotted(alias.name), 0)
            if file is not None:
                yield alias.evaluated_alias or dotted(alias.name), (file, "")
    for node in source.of(cst.ImportFrom):
        module, level = dotted(node.module) if node.module is not None else "", len(node.relative)
        file = _file(paths, path, module, level) if module else None
        if isinstance(node.names, cst.ImportStar):
            if file is not None:
                yield "*", (file, "*")
            continue
        for alias in node.names:
            name = alias.evaluated_name
            bound = alias.evaluated_alias or name
            inner = _file(paths, path, f"{module}.{name}".lstrip("."), level)
            if inner is not None:
                yield bound, (inner, "")
            elif file is not None:
                yield bound, (file, name)


def _file(paths: list[str], path: str, module: str, level: int) -> str | None:
    """Return the one file that a module's name means, seen from another file; None where there is not one."""
    parts = tuple(part for part in module.split(".") if part)
    if level:
        folder = PurePath(path).parts[:-level]
        found = [one for one in paths if _parts(one) == (*folder, *parts)]
    else:
        found = [one for one in paths if _parts(one)[-len(parts) :] == parts]
        beside = [one for one in found if _parts(one) == (*PurePath(path).parts[:-1], *parts)]
        found = beside or found
    return found[0] if len(found) == 1 else None


def _parts(path: str) -> tuple[str, ...]:
    parts = PurePath(path).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts
