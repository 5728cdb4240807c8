"""What a line of a recording must look like: types, ranges and sizes, checked before anything is computed from it.

Imports pydantic, so it is imported only where a recording is read.
"""

from __future__ import annotations

import reprlib
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ..backend.sketch import WIDTH
from ..loss_scale import FLOAT32_MAX

LAYERS = 100_000
"""Most gradients, activations or epsilons that one record may hold."""
RANKS = 100_000
"""Most ranks of a run."""
COUNTED = 2**53
"""The largest count: floats hold every whole number up to it."""

Text = Annotated[str, Field(strict=True, max_length=100_000)]
Name = Annotated[str, Field(strict=True, max_length=500)]
Count = Annotated[int, Field(strict=True, ge=0, le=COUNTED)]
Positive = Annotated[int, Field(strict=True, ge=1, le=COUNTED)]
Flag = Annotated[bool, Field(strict=True)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Scale = Annotated[float, Field(strict=True, gt=0, le=FLOAT32_MAX)]
Number = Real | Literal["inf", "-inf", "nan"]
Magnitude = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | Literal["inf", "-inf", "nan"]


def _power(text: str) -> str:
    if text not in _POWERS:
        raise ValueError("powers of two are whole numbers from -127 to 127")
    return text


_POWERS = frozenset(map(str, range(-127, 128)))
Power = Annotated[str, AfterValidator(_power)]


class Counts(TypedDict):
    """One gradient's values; the kinds that float16 decides are computed again from ``exponents``."""

    zero: Count
    inf: Count
    nan: Count
    overflow: Count
    exponents: dict[Power, Count]


class Gradient(TypedDict):
    """A gradient's values before and after they were divided by the scale."""

    scaled: Counts
    true: Counts


class State(Counts):
    """The values of a weight, or of an optimizer's state of it."""

    dtype: Name
    norm: Magnitude


class Activation(TypedDict):
    """The largest value of what went into a layer or came out of it."""

    layer: Name
    kind: Name
    place: Literal["output", "input"]
    dtype: Name
    largest: Magnitude


Numbers32 = Annotated[list[Number], Field(min_length=WIDTH, max_length=WIDTH)]


class Sketched(TypedDict):
    """A sketch of one tensor, see ``unifiedamp.backend.sketch``."""

    shape: Annotated[list[Count], Field(max_length=64)]
    dtype: Name
    norm: Magnitude
    sketch: Numbers32
    ordered: NotRequired[Numbers32]


class LayerOfRank(TypedDict):
    """What adds up over ranks of what went into a layer or came out of it."""

    layer: Name
    kind: Name
    place: Literal["output", "input"]
    function: NotRequired[Name]
    shape: Annotated[list[Count], Field(max_length=64)]
    dtype: Name
    norm: Magnitude
    batch: Numbers32


class SketchedLayer(LayerOfRank):
    """A sketch of what went into a layer or came out of it."""

    sketch: Numbers32
    ordered: Numbers32


Sketches = Annotated[dict[Name, Sketched], Field(max_length=LAYERS)]


class Compared(TypedDict):
    """What ``unifiedamp diff`` compares of a step: layers in execution order, gradients, weights and their updates."""

    layers: Annotated[list[SketchedLayer], Field(max_length=LAYERS)]
    gradients: Sketches
    before: Sketches
    update: Sketches


class FirstActivation(TypedDict):
    """Where inf or nan first appeared in the forward pass."""

    layer: Name
    kind: Name
    place: Literal["output", "input", "inside"]
    before: Name
    after: Name


class NonFinite(TypedDict):
    """What is known of a step with inf or nan."""

    loss_was_finite: Flag | None
    first_activation: FirstActivation | None
    first_gradient: Name | None
    gradients: Annotated[list[Name], Field(max_length=LAYERS)]


class Epsilon(TypedDict):
    """A small constant of a layer or an optimizer."""

    layer: Name
    attribute: Name
    value: Real
    dtype: Name


class Header(TypedDict):
    """The first line of a part."""

    kind: Literal["header"]
    format: Name
    version: Positive
    unifiedamp: Text
    backend: Name
    framework_version: Name | None
    device: Name
    policy: Text
    every: Positive | None
    compute_dtype: NotRequired[Name]
    param_dtype: NotRequired[Name]
    epsilons: Annotated[list[Epsilon], Field(max_length=LAYERS)]
    compare: NotRequired[Flag]
    states: NotRequired[Flag]
    ranks: NotRequired[Positive]
    reduction: NotRequired[Literal["mean", "sum"]]
    environment: NotRequired[Annotated[dict[Name, Text], Field(max_length=1000)]]
    settings: NotRequired[Annotated[list[Annotated[list[Text], Field(max_length=3)]], Field(max_length=LAYERS)]]


class Step(TypedDict):
    """A recorded step."""

    kind: Literal["step"]
    step: Count
    scale: Scale
    next_scale: Scale
    loss: Number | None
    applied: Flag
    applied_steps: Count
    skipped_steps: Count
    gradients: Annotated[dict[Name, Gradient], Field(max_length=LAYERS)]
    activations: Annotated[list[Activation], Field(max_length=LAYERS)]
    non_finite: NonFinite | None
    compare: NotRequired[Compared]
    ran: NotRequired[Literal["eager", "compiled", "uncompiled"]]
    states: NotRequired[Annotated[dict[Name, dict[Name, State]], Field(max_length=LAYERS)]]


class FirstOfRanks(TypedDict):
    """Where inf or nan appeared first of all ranks; ``name`` is a layer's or, but for "forward", a gradient's."""

    during: Literal["forward", "backward", "reduction"]
    ranks: Annotated[list[Count], Field(max_length=RANKS)]
    name: Name


class BadRank(TypedDict):
    """What one rank computed in a step with inf or nan, before gradients were summed."""

    rank: Count
    loss: Number | None
    first_activation: FirstActivation | None
    first_gradient: Name | None
    gradients: Annotated[list[Name], Field(max_length=LAYERS)]


class RankStep(TypedDict):
    """What all ranks, replicas or contexts recorded of a step."""

    kind: Literal["ranks"]
    step: Count
    count: Positive
    missing: Annotated[list[Count], Field(max_length=RANKS)]
    first: FirstOfRanks | None
    bad: Annotated[list[BadRank], Field(max_length=RANKS)]
    gradients: NotRequired[Annotated[dict[Name, Gradient], Field(max_length=LAYERS)]]
    local: NotRequired[Annotated[dict[Name, Sketches], Field(max_length=RANKS)]]
    layers: NotRequired[
        Annotated[dict[Name, Annotated[list[LayerOfRank], Field(max_length=LAYERS)]], Field(max_length=RANKS)]
    ]
    losses: NotRequired[Annotated[dict[Name, Number | None], Field(max_length=RANKS)]]


class Skip(TypedDict):
    """Skipped steps that were not recorded themselves."""

    kind: Literal["skip"]
    step: Count
    since: Count
    count: Positive
    exact: Flag
    next_scale: Scale
    skipped_steps: Count
    non_finite: NonFinite


class Numbers(TypedDict):
    """Numbers that a loop logged."""

    kind: Literal["numbers"]
    step: Count
    scale: Scale
    applied_steps: Count
    skipped_steps: Count
    numbers: Annotated[dict[Name, Number | Count], Field(max_length=LAYERS)]


KINDS: dict[str, TypeAdapter[Any]] = {
    "header": TypeAdapter(Header),
    "step": TypeAdapter(Step),
    "skip": TypeAdapter(Skip),
    "ranks": TypeAdapter(RankStep),
    "numbers": TypeAdapter(Numbers),
}
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def problem_with(record: dict[str, Any]) -> str | None:
    """Return what is wrong with a record of a kind in :data:`KINDS` (the field, what was wanted); None if nothing."""
    try:
        KINDS[record["kind"]].validate_python(record)
    except ValidationError as error:
        # A union reports each alternative; the one that got deepest is the one that was meant.
        worst = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))
        path = ".".join(str(part)[:80] for part in worst["loc"])
        return f"{path}: {worst['msg']} (got {_short.repr(worst['input'])})"
    return None
