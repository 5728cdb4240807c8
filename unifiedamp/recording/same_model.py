"""Refusing to compare recordings that are not of one model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import ConfigError
from .reading import Recording


def check_same_model(a: Recording, b: Recording) -> None:
    """Refuse two recordings whose steps cannot be compared.

    Raises:
        ConfigError: no sketches, two frameworks, or two models, naming the first layer or parameter that one alone has.
    """
    for which, recording in (("first", a), ("second", b)):
        if not any("compare" in step for step in recording.steps):
            raise ConfigError(
                f"the {which} recording has nothing to compare: make it with amp.record(..., compare=True)"
            )
    backends = [recording.header["backend"] for recording in (a, b)]
    if backends[0] != backends[1]:
        raise ConfigError(
            f"the recordings are of {backends[0]} and {backends[1]}, whose tensors have other names and layouts; "
            "unifiedamp diff compares two runs of one framework (unifiedamp parity compares frameworks)"
        )
    one, other = (_parts(_first(recording)) for recording in (a, b))
    for what in one:
        _check_part(what, one[what], other[what])


def _first(recording: Recording) -> dict[str, Any]:
    return next(step for step in recording.steps if "compare" in step)


def _parts(step: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return what is compared: a kind of thing → name → what must be equal of it."""
    compared = step["compare"]
    layers = {row["layer"]: row["kind"] for row in compared["layers"]}
    weights = {name: str(tuple(each["shape"])) for name, each in compared["before"].items()}
    gradients = {name: str(tuple(each["shape"])) for name, each in compared["gradients"].items()}
    return {"layer": layers, "weight": weights, "gradient": gradients}


def _check_part(what: str, one: dict[str, str], other: dict[str, str]) -> None:
    for name, which in _alone(one, other):
        raise ConfigError(
            f"the recordings are of different models: the {which} one alone has the {what} `{name or 'the model'}`"
        )
    for name in one:
        if one[name] != other[name]:
            raise ConfigError(
                f"the recordings are of different models: the {what} `{name or 'the model'}` is {one[name]} in the "
                f"first one and {other[name]} in the second one"
            )


def _alone(one: dict[str, str], other: dict[str, str]) -> Iterator[tuple[str, str]]:
    yield from ((name, "first") for name in one if name not in other)
    yield from ((name, "second") for name in other if name not in one)
