"""What a recording says, in sentences that name layers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..backend.recording import FLOAT16_MAX
from .counts import LARGEST, SMALLEST, Distribution
from .nonfinite_origin import layer_of
from .reading import Recording

FLUSHED_TOO_MUCH = 0.5
"""Share of a gradient below 2**-24 from which it is spoken of."""
MAX_SCALE = 24
"""The highest exponent of a loss scale that is advised; the default ``max_scale`` is 2**24."""

SMALLEST_OF = {"float16": (2.0**-24, 2.0**-14), "bfloat16": (2.0**-133, 2.0**-126), "float32": (2.0**-149, 2.0**-126)}
"""dtype → its smallest number and its smallest normal one."""


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Attributes:
        kind: "non_finite", "activation", "underflow", "epsilon" or "input".
        name: the layer, parameter or optimizer that it is about.
        text: a sentence or two: what was seen, and what to do.
    """

    kind: str
    name: str
    text: str


def findings(recording: Recording) -> list[Finding]:
    """Return what there is to say, the gravest first; empty when all is well."""
    return [
        *_non_finite(recording),
        *_large_activations(recording),
        *_flushed_gradients(recording),
        *_lost_epsilons(recording),
    ]


def culprit(record: dict[str, Any], usual: frozenset[str]) -> tuple[str, str] | None:
    """Return ("forward", layer), ("input", layer), ("gradient", parameter) or ("reduction", parameter) of a record with
    inf or nan; of several ranks, what was first on any of them.

    Args:
        record: of a step, or of skipped steps.
        usual: layers whose outputs are not finite on good steps as well (masks): they are not to blame.
    """
    merged = record.get("ranks")
    if merged is not None and merged["first"] is not None:
        return _first_of_ranks(merged, usual)
    found = record["non_finite"]
    first = found["first_activation"]
    if first is not None and first["layer"] not in usual:
        return ("input" if _is_batch(first) else "forward"), first["layer"]
    if found["first_gradient"] is not None:
        return "gradient", found["first_gradient"]
    return None


def _first_of_ranks(merged: dict[str, Any], usual: frozenset[str]) -> tuple[str, str] | None:
    first = merged["first"]
    if first["during"] == "reduction":
        return "reduction", first["name"]
    if first["during"] == "forward" and first["name"] not in usual:
        found = _activation_of(merged)
        return ("input" if found is not None and _is_batch(found) else "forward"), first["name"]
    gradients = [each["first_gradient"] for each in merged["bad"] if each["first_gradient"] is not None]
    name = first["name"] if first["during"] == "backward" else next(iter(gradients), None)
    return None if name is None else ("gradient", name)


def _activation_of(merged: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first activation of the first rank."""
    ranks = merged["first"]["ranks"]
    return next((each["first_activation"] for each in merged["bad"] if each["rank"] in ranks), None)


def _is_batch(first: dict[str, Any]) -> bool:
    return bool(first["place"] == "input")


def _non_finite(recording: Recording) -> Iterator[Finding]:
    bad = recording.bad_steps()
    if not bad:
        return
    usual = frozenset(
        row["layer"]
        for step in recording.steps
        if not step["non_finite"]
        for row in step["activations"]
        if not math.isfinite(float(row["largest"]))
    )
    total = sum(int(record.get("count", 1)) for record in bad)
    blamed: Counter[tuple[str, str]] = Counter()
    kinds: dict[tuple[str, str], str] = {}
    ranks: dict[tuple[str, str], set[int]] = {}
    for record in bad:
        who = culprit(record, usual)
        if who is not None:
            blamed[who] += 1
            kinds[who] = _where(record, who)
            ranks.setdefault(who, set()).update(_ranks_of(record, who))
    size = max((record["count"] for record in recording.ranks), default=1)
    for who, count in blamed.most_common():
        kind = "input" if who[0] == "input" else "non_finite"
        text = _blame_text(who, kinds[who], count, total)
        yield Finding(kind, who[1], text + _ranks_text(sorted(ranks[who]), size))


def _ranks_of(record: dict[str, Any], who: tuple[str, str]) -> list[int]:
    """Return the ranks on which it was first, where that is known."""
    merged = record.get("ranks")
    first = merged["first"] if merged is not None else None
    return first["ranks"] if first is not None and first["name"] == who[1] else []


def _ranks_text(ranks: list[int], size: int) -> str:
    if not ranks or size == 1:
        return ""
    if len(ranks) == size:
        return f" It was first on all {size} ranks alike."
    return f" It was first on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} of {size} ranks."


def _where(record: dict[str, Any], who: tuple[str, str]) -> str:
    if who[0] != "forward":
        return ""
    merged = record.get("ranks")
    first = _activation_of(merged) if merged is not None and merged["first"] is not None else None
    first = first or record["non_finite"]["first_activation"]
    layer = f"`{_shown(first['layer'])}` ({first['kind']})"
    if first["place"] == "output":
        return f"in the output of {layer}"
    after = f"after `{first['after']}` and " if first["after"] else ""
    return f"in an operation of {layer} {after}before `{first['before']}`"


def _blame_text(who: tuple[str, str], where: str, count: int, total: int) -> str:
    kind, name = who
    steps = f"{count} of {total} skipped step{'s' if total > 1 else ''}"
    if kind == "input":
        return f"the batch itself held inf or nan in {steps}: check the data; no precision can fix that."
    if kind == "forward":
        return f"`{_shown(name)}` overflowed in {steps}: inf or nan first appeared {where}. {_keep(name)}"
    if kind == "reduction":
        what = f"of the gradient of `{name}`" if name else "of gradients"
        return (
            f"the sum over ranks {what} was not finite in {steps}, though every rank's own gradients were: sum them in "
            'float32 (reduce_dtype="float32"), or lower the loss scale.'
        )
    text = f"the gradient of `{name}` was the first that was not finite in {steps}."
    if total == 1:
        return text + " One now and then is how a dynamic loss scale finds its height."
    return f"{text} A loss scale that starts lower skips fewer; if it goes on: {_keep(layer_of(name)).lower()}"


def _keep(layer: str) -> str:
    if not layer:
        return "Keep that part of the model in float32."
    return f'Keep it in float32 with layer_overrides = {{"{layer}" = "float32"}}.'


def _shown(layer: str) -> str:
    return layer or "the model"


def _large_activations(recording: Recording) -> Iterator[Finding]:
    largest: dict[str, tuple[float, dict[str, Any]]] = {}
    for step in recording.steps:
        for row in step["activations"]:
            value = float(row["largest"])
            if row["place"] == "output" and math.isfinite(value) and value > largest.get(row["layer"], (0.0,))[0]:
                largest[row["layer"]] = (value, row)
    inside = {
        (around, value) for layer, (value, _) in largest.items() for around in _around(layer) if around in largest
    }
    for layer, (value, row) in largest.items():
        if layer and value > FLOAT16_MAX and (layer, value) not in inside:
            text = f"`{layer}` ({row['kind']}) reached {value:.4g} in its output, computed in {row['dtype']}"
            yield Finding("activation", layer, f"{text}; float16 ends at 65504. {_keep(layer)}")


def _around(layer: str) -> Iterator[str]:
    """Yield the paths of the layers that a layer is inside of."""
    while layer := layer_of(layer):
        yield layer


def _flushed_gradients(recording: Recording) -> Iterator[Finding]:
    if not recording.steps:
        return
    totals = {name: recording.total(name, "true") for name in recording.gradients}
    scale = float(recording.steps[-1]["scale"])
    exponent = advised_exponent(totals)
    for name, true in totals.items():
        share = recording.total(name, "scaled")
        flushed = share.share(share.flushed)
        if flushed is None or flushed <= FLUSHED_TOO_MUCH:
            continue
        text = f"gradient of `{name}`: {flushed:.0%} of its values are below 2**-24 at loss scale {scale:g}"
        left = _flushed_at(true, exponent)
        if 2.0**exponent > scale and left < flushed / 2:
            yield Finding("underflow", name, f"{text}: raise the initial scale to 2**{exponent} (then {left:.0%}).")
        else:
            why = f"2**{exponent}, the highest that overflows no other gradient, leaves {left:.0%}"
            yield Finding("underflow", name, f"{text}; {why}. {_keep(layer_of(name))}")


def advised_exponent(true: dict[str, Distribution]) -> int:
    """Return the exponent of the highest loss scale that leaves every true gradient a factor of 2 below overflow."""
    tops = [max(counts.exponents) for counts in true.values() if counts.exponents]
    return min(MAX_SCALE, LARGEST - 1 - max(tops, default=0))


def _flushed_at(true: Distribution, exponent: int) -> float:
    return (true.between(-1000, SMALLEST - exponent) / true.there) if true.there else 0.0


def _lost_epsilons(recording: Recording) -> Iterator[Finding]:
    for row in recording.header["epsilons"]:
        layer, name, value, dtype = _shown(row["layer"]), row["attribute"], float(row["value"]), row["dtype"]
        smallest, normal = SMALLEST_OF.get(dtype, (0.0, 0.0))
        text = f"{name} = {value:g} of `{layer}`"
        if value <= smallest / 2:
            text += f" is 0 in {dtype}, which it is added in: use at least {normal:.2g}, or keep the layer in float32."
        elif value < normal:
            text += f" is below {dtype}'s normal numbers ({normal:.2g}): it loses bits, or is flushed to 0."
        elif dtype == "bfloat16" and value <= SMALLEST_OF["float16"][0] / 2:
            text += " would be 0 in float16; in bfloat16, which it is added in now, it is not."
        else:
            continue
        yield Finding("epsilon", row["layer"], text)
