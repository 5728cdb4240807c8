"""What a backend hands over of one recorded step. Plain Python values; the counting is done on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .sketch import Sketch

FLOAT16_MAX = 65504.0
"""The largest finite float16."""

MAX_BITS = 0x477FE000
"""The bits of 65504.0 as a float32."""

INF_BITS = 0x7F800000
"""The bits of inf as a float32; those of nan are above."""

EDGE_BITS: tuple[int, ...] = (
    1,
    *[field << 23 for field in range(1, 143)],
    MAX_BITS + 1,
    *[field << 23 for field in range(143, 256)],
    INF_BITS + 1,
)
"""Where the next bucket begins, as the bits of a float32 without its sign, ascending: a value is counted in the bucket
whose number is the count of edges not above it. Such bits are ordered as the values are, nan last."""

BUCKETS = len(EDGE_BITS) + 1
"""Counts per gradient: zeros; values below 2**-126; one bucket for each power of two (that of 2**15 parted after
65504); infinite values; nan."""


@dataclass(frozen=True)
class GradientCounts:
    """How the values of one gradient are distributed: two sequences of :data:`BUCKETS` counts.

    Attributes:
        scaled: the gradient as the backward pass left it.
        true: the same divided by the loss scale.
    """

    scaled: Sequence[int]
    true: Sequence[int]


@dataclass(frozen=True)
class StateCounts:
    """How the values of a weight, or of an optimizer's state of it, are distributed.

    Attributes:
        counts: :data:`BUCKETS` counts.
        norm: the Euclidean norm; inf or nan where the tensor holds one.
        dtype: that it is kept in.
    """

    counts: Sequence[int]
    norm: float
    dtype: str


WEIGHT, UPDATE = "weight", "update"
"""The names of a weight, and of what changed it, among its optimizer's states, in :data:`States`."""

States = Mapping[str, Mapping[str, StateCounts]]
"""Parameter name → :data:`WEIGHT`, :data:`UPDATE` where weights were kept, and the name of each of the optimizer's
states of its shape, as the framework names it → its counts."""


@dataclass(frozen=True)
class Activation:
    """The largest absolute value of what went into a layer or came out of it.

    Attributes:
        layer: the layer's path, "" for the model itself.
        kind: the layer's class.
        place: "output"; "input" for a tensor that came out of no layer (the batch, or an operation between layers).
        dtype: its dtype's name.
        largest: inf or nan where it held such a value.
        function: name of the activation function that the layer applies last ("relu", as Keras's ``Dense`` may); empty
            for none. Only ``compare`` needs it.
    """

    layer: str
    kind: str
    place: str
    dtype: str
    largest: float
    function: str = ""


@dataclass(frozen=True)
class StepSketches:
    """Sketches of a step's tensors, for ``amp.record(compare=True)``.

    Attributes:
        activations: one for each activation of the step that holds the sketches, in its order.
        gradients: parameter name → of its gradient, divided by the loss scale: of a :class:`RecordedStep` after the sum
            over ranks, of a :class:`LocalStep` before it.
    """

    activations: Sequence[Sketch] = ()
    gradients: Mapping[str, Sketch] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalStep:
    """What one rank, replica or context computed of a step before gradients were summed.

    Attributes:
        rank: its number.
        activations: as in :class:`RecordedStep`.
        finite: parameter name → whether its gradient was finite before the sum; empty where that is not known.
        loss: its unscaled loss; None where none was seen.
        sketches: of its activations and of its gradients before the sum, where they were asked for.
    """

    rank: int
    activations: Sequence[Activation] = ()
    finite: Mapping[str, bool] = field(default_factory=dict)
    loss: float | None = None
    sketches: StepSketches | None = None


@dataclass(frozen=True)
class RecordedStep:
    """What was seen of one step.

    Attributes:
        scale: the loss scale that its gradients carry.
        loss: the unscaled loss (the last one, of several; of several replicas the sum); None where none was seen.
        gradients: parameter name → its counts.
        activations: in the order in which the layers ran; a layer that ran twice is there twice.
        local: of several ranks, replicas or contexts, what each of this process computed; empty for one alone.
        sharded: ``gradients`` are of this rank's shards, and counts of all ranks add up.
        sketches: of its tensors, where they were asked for; of several replicas or contexts of this process, which
            have those of layers in ``local``, gradients alone.
        weights: the same as ``Recorder.weights``, when a step began whose gradients are noted while tracing; core asks
            for those of other steps itself.
        unreduced: ``gradients`` are those of this process before they were reduced over ranks.
    """

    scale: float = 1.0
    loss: float | None = None
    gradients: Mapping[str, GradientCounts] = field(default_factory=dict)
    activations: Sequence[Activation] = ()
    local: Sequence[LocalStep] = ()
    sharded: bool = False
    sketches: StepSketches | None = None
    weights: Mapping[str, Any] = field(default_factory=dict)
    unreduced: bool = False


class RankMessages(Protocol):
    """Messages from each rank to the first one. No method is a collective: a rank that is elsewhere is not waited for.

    Attributes:
        rank: of this process.
        ranks: all that train together, ascending; the first receives.
    """

    rank: int
    ranks: Sequence[int]

    def received(self) -> bool:
        """Return whether the first rank records, and so takes messages."""

    def post(self, step: int, text: str) -> None:
        """Leave a message about a recorded step for the first rank."""

    def ready(self, step: int, seconds: float) -> bool:
        """Return whether all other ranks have posted about a step, within some seconds at most."""

    def take(self, step: int) -> Mapping[int, str]:
        """Return the messages about a step that have come, by rank; they are dropped."""


@dataclass(frozen=True)
class Epsilon:
    """A small constant that keeps a division from failing.

    Attributes:
        layer: the layer's path, or the optimizer's class.
        attribute: its name there ("eps").
        value: as it was written.
        dtype: what it is added in; where a kernel computes in float32 whatever its inputs are, that.
    """

    layer: str
    attribute: str
    value: float
    dtype: str
