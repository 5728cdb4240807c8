"""Runs the listings, which are written in interfaces that are gone, with their import lines replaced."""

from __future__ import annotations

from pathlib import Path

LISTINGS = Path(__file__).parent.parent / "listings"


def listing(name, *replacements):
    """Return the names that a listing defines, after replacing (old, new) in its text; each must be there once."""
    text = (LISTINGS / f"{name}.py").read_text()
    for old, new in replacements:
        assert text.count(old) == 1, f"{name}: {old!r} stands there {text.count(old)} times"
        text = text.replace(old, new)
    names = {"__name__": f"listing_{name}"}
    exec(compile(text, f"{name}.py", "exec"), names)
    return names


def falls(losses):
    """Whether the last losses are well below the first ones."""
    quarter = max(1, len(losses) // 4)
    return sum(losses[-quarter:]) < 0.7 * sum(losses[:quarter])
