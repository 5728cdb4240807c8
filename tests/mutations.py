"""Values as an attacker or a damaged program would change them: one place of a valid value at a time."""

import copy
import math

from hypothesis import strategies as st

ODD = [
    None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**400, 0.0, -0.0, 0.5, -1.5, 1e-320, 1e39,
    1e308, math.inf, -math.inf, math.nan, "", "x", "1", "inf", "nan", "\x1b[31m", "\u202e", "\ud800", "a" * 5000, [],
    {}, [[]], [None], {"": None}, {"kind": "step"}, "__deep__",
]  # fmt: skip
ODD_KEYS = ["", "x", "-0", "1e3", "999999999", "-999999999", "1.5", "\u202e", "__proto__"]


def places(value, path=()):
    """Yield the path of each value inside ``value``, itself included."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def deep(depth=100_000):
    """Text of lists in lists."""
    return "[" * depth + "]" * depth


@st.composite
def mutated(draw, value, odd=ODD):
    """A copy of ``value`` in which one to three places are changed: replaced, removed, renamed, wrapped, negated."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        value = _changed(draw, value, draw(st.sampled_from(list(places(value)))), odd)
    return value


def _changed(draw, value, path, odd):
    kind = draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename", "wrap", "negate", "swap"]))
    if not path:
        return copy.deepcopy(draw(st.sampled_from(odd))) if kind == "replace" else value
    *way, last = path
    inside = value
    for key in way:
        inside = inside[key]
    old = inside[last]
    if kind == "remove":
        del inside[last]
    elif kind == "rename" and isinstance(inside, dict):
        inside[draw(st.sampled_from(ODD_KEYS))] = inside.pop(last)
    elif kind == "wrap":
        inside[last] = draw(st.sampled_from([[old], {"x": old}]))
    elif kind == "negate" and isinstance(old, (int, float)):
        inside[last] = -old
    elif kind == "swap":
        inside[last] = copy.deepcopy(draw(st.sampled_from([inside, value])))
    else:
        inside[last] = copy.deepcopy(draw(st.sampled_from(odd)))
    return value
