"""Matching globs against a model's layer paths, the same way on every backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from ..errors import PolicyError, first_names, nearest


def match_layers(
    overrides: Mapping[str, str], paths: Iterable[str], setting: str = "layer_overrides"
) -> dict[str, str]:
    """Return layer path → dtype for the layers that a glob names.

    Args:
        overrides: glob → dtype. ``*`` matches any text, dots included; case counts.
        paths: layer paths with components joined by dots ("encoder.0.linear"), whatever the framework writes.
        setting: what the globs are called in errors.

    Raises:
        PolicyError: two globs match one layer, or a glob matches none.
    """
    known = [path for path in paths if path]
    chosen: dict[str, tuple[str, str]] = {}
    for glob, dtype in overrides.items():
        matched = [path for path in known if fnmatchcase(path, glob)]
        if not matched:
            raise PolicyError(
                f"{setting}: {glob!r} matches no layer{nearest(glob, known)} (layers: {first_names(known, 8)})"
            )
        for path in matched:
            if path in chosen:
                raise PolicyError(f"{setting}: layer {path!r} is matched by {chosen[path][0]!r} and by {glob!r}")
            chosen[path] = (glob, dtype)
    return {path: dtype for path, (_, dtype) in chosen.items()}
