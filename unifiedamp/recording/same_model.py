"""Which tensors of two recordings belong together; refusing recordings that are not of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .alignment import Pairs, pair_rows, pair_weights, weights_in_order
from .nonfinite_origin import layer_of
from .ranks_of_step import RankCount, RanksOfStep
from .reading import Recording

WRAPPERS = ("DistributedDataParallel", "DataParallel")
"""Modules around a model, under whose names its own begin with ``module.``."""


@dataclass(frozen=True)
class Pairing:
    """What is compared of two recordings, and how.

    Attributes:
        names: layers have the same names in both; else they are matched by order, kind and size.
        part: of sketches: "sketch", or "ordered" where layouts may differ.
        weights: names in the first one and in the second one.
        left_out: what has no partner.
    """

    names: bool
    part: str
    weights: Pairs
    left_out: list[str]


def pairing(a: Recording, b: Recording) -> Pairing:
    """Return what is compared.

    Raises:
        ConfigError: no sketches, or two models, naming the first layer or parameter that one alone has.
    """
    one, other = _compared_first(a, b)
    problem = next(_differing_names(one, other), None)
    same = a.header["backend"] == b.header["backend"]
    if problem is None:
        return Pairing(same, "sketch" if same else "ordered", [(name, name) for name in one["before"]], [])
    pairs = pair_weights(one, other)
    alone = list(_without_partner(one, other, pairs))
    matched = {layer_of(name) for pair in pairs for name in pair}
    rows, others = one["layers"], other["layers"]
    if same and (alone or len(pair_rows(rows, others, names=False)) < max(len(rows), len(others))):
        named = bool({row["layer"] for row in rows} & {row["layer"] for row in others} - {""})
        unlike = [*_rows_without_partner(one, other), *((layer_of(name), which) for name, which in alone)]
        raise ConfigError(
            f"the recordings are of different models: {problem if named else _alone_text(*unlike[0], one, other)}"
        )
    for name, which in alone:
        if layer_of(name) not in matched:
            said = _alone_text(layer_of(name), which, one, other)
            raise ConfigError(f"the recordings are of different models: {said}")
    return Pairing(False, "sketch" if same else "ordered", pairs, [f"`{name}`" for name, _ in alone])


def _compared_first(a: Recording, b: Recording) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is compared of the first steps; of different numbers of ranks, with layers of the whole batch."""
    steps = _first("first", a), _first("second", b)
    ranks = RanksOfStep(*steps, (RankCount.of(a.header), RankCount.of(b.header)), layouts=True)
    rows, others = ranks.rows()
    return {**steps[0]["compare"], "layers": rows}, {**steps[1]["compare"], "layers": others}


def unwrapped(recording: Recording) -> Recording:
    """Return a recording without the names of modules that only wrap a model."""
    rows = [row for step in recording.steps for row in step.get("compare", {}).get("layers", ())]
    if not any(row["layer"] == "" and row["kind"] in WRAPPERS for row in rows):
        return recording
    steps = [_unwrapped_step(step) for step in recording.steps]
    return Recording(recording.headers, steps, recording.skips, recording.numbers, recording.ranks, recording.damaged)


def _unwrapped_step(step: dict[str, Any]) -> dict[str, Any]:
    found = dict(step)
    if "compare" in step:
        named = {key: _plain(each) for key, each in step["compare"].items() if key != "layers"}
        found["compare"] = {**named, "layers": _inner(step["compare"]["layers"])}
    ranks = dict(step.get("ranks") or {})
    if "local" in ranks:
        ranks["local"] = {rank: _plain(each) for rank, each in ranks["local"].items()}
        ranks["layers"] = {rank: _inner(each) for rank, each in ranks["layers"].items()}
        found["ranks"] = ranks
    return found


def _plain(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("module."): each for name, each in named.items()}


def _inner(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds = {row["layer"]: row["kind"] for row in rows}
    return [
        {**row, "layer": row["layer"].removeprefix("module").removeprefix("."),
         "kind": row["kind"] if row["layer"] else kinds.get("module", row["kind"])}
        for row in rows
        if row["layer"] or row["place"] == "input"
    ]  # fmt: skip


def _first(which: str, recording: Recording) -> dict[str, Any]:
    for step in recording.steps:
        if "compare" in step:
            return step
    raise ConfigError(
        f"the {which} recording has no sketches to compare: record it with amp.record('run.jsonl', every=1, "
        "compare=True), or another every="
    )


def _parts(compared: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return what is compared: a kind of thing → name → what must be equal of it."""
    layers = {row["layer"]: "" for row in compared["layers"]}
    weights = {name: str(tuple(each["shape"])) for name, each in compared["before"].items()}
    gradients = {name: str(tuple(each["shape"])) for name, each in compared["gradients"].items()}
    return {"layer": layers, "weight": weights, "gradient": gradients}


def _differing_names(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Yield why layers, weights and gradients are not the same by name."""
    for (what, ours), others in zip(_parts(one).items(), _parts(other).values(), strict=True):
        yield from (
            f"the first one alone has the {what} `{name or 'the model'}`" for name in ours if name not in others
        )
        yield from (
            f"the second one alone has the {what} `{name or 'the model'}`" for name in others if name not in ours
        )
        for name in ours:
            if ours[name] != others[name]:
                yield (
                    f"the {what} `{name or 'the model'}` is {ours[name]} in the first one and {others[name]} in the "
                    "second one"
                )


def _without_partner(one: Mapping[str, Any], other: Mapping[str, Any], pairs: Pairs) -> Iterator[tuple[str, str]]:
    """Yield weights that one model alone has, in the order in which layers ran, and which model."""
    for which, compared, have in (("first", one, {a for a, _ in pairs}), ("second", other, {b for _, b in pairs})):
        yield from ((name, which) for name in weights_in_order(compared) if name not in have)


def _alone_text(layer: str, which: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return (
        f"the {which} one alone has the layer `{layer or 'the model'}` "
        f"({_shown(layer, one if which == 'first' else other)})"
    )


def _rows_without_partner(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield layers that one model alone ran, in order, and which model."""
    pairs = pair_rows(one["layers"], other["layers"], names=False)
    for which, compared, have in (("first", one, {i for i, _ in pairs}), ("second", other, {j for _, j in pairs})):
        yield from ((row["layer"], which) for at, row in enumerate(compared["layers"]) if at not in have)


def _shown(layer: str, compared: Mapping[str, Any]) -> str:
    own = [each for each in compared["before"] if layer_of(each) == layer]
    kinds = {row["layer"]: row["kind"] for row in compared["layers"]}
    shapes = ", ".join(f"{each.rpartition('.')[2]} {tuple(compared['before'][each]['shape'])}" for each in own)
    return ": ".join(part for part in (str(kinds.get(layer, "")), shapes) if part)
