"""The protocol of a workload: the model, optimizer, loss and batches of a file that every command can train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

REQUIRED: dict[str, tuple[str, ...]] = {
    "make_model": (),
    "make_optimizer": ("model",),
    "loss": ("model", "batch"),
    "batches": ("epoch",),
}
"""Part → its arguments."""

OPTIONAL: dict[str, tuple[str, ...]] = {
    "evaluate": ("amp", "model"),
    "export_weights": ("amp", "model"),
    "import_weights": ("amp", "model", "weights"),
    "export_optimizer": ("amp", "model", "optimizer"),
    "import_optimizer": ("amp", "model", "optimizer", "state"),
    "parity_values": ("before", "after"),
    "shard": ("batch", "rank", "ranks"),
}
"""Further parts; see :class:`Workload`."""

PAIRS = (("export_weights", "import_weights"), ("export_optimizer", "import_optimizer"))
"""Parts that a workload has both of, or neither."""

ATTRIBUTES = ("backends", "may_change")
"""Optional attributes; see :class:`Workload`."""


class Workload(Protocol):
    """What a workload must have: four methods of an object or class, or four functions of a module.

    A workload may also have:

    - ``evaluate(amp, model)``: return a score, higher is better, or a mapping of names to scores. ``accuracy``,
      ``precision``, ``recall``, ``f1`` (each from 0 to 1) and ``samples`` (how many they are of) have columns in the
      tables. Called outside ``amp.inference``.
    - ``export_weights(amp, model)`` and ``import_weights(amp, model, weights)``: name → numpy array, the same names and
      layouts under every backend, so that ``--resume`` goes on under another one and ``unifiedamp parity`` compares.
      Likewise ``export_optimizer(amp, model, optimizer)`` and ``import_optimizer(amp, model, optimizer, state)``.
      Without them, checkpoints hold what the framework calls them, and go on under the same backend.
    - ``parity_values(before, after)``: what ``unifiedamp parity`` compares; see :class:`ParityValue`.
    - ``shard(batch, rank, ranks)``: return the part of a batch that one of several processes trains on, for batches
      whose arrays cannot be divided along their first axis alike.
    - ``backends``: the names of the backends that it is written for; all, if absent.
    - ``may_change``: the names of settings that a resumed run may change, such as ``"learning_rate"``.
    """

    def make_model(self) -> Any:
        """Return a new model. Called inside ``amp.scope()``."""

    def make_optimizer(self, model: Any, /) -> Any:
        """Return the model's optimizer (Gluon: a ``Trainer``), or a list of several. Called inside ``amp.scope()``."""

    def loss(self, model: Any, batch: Any, /) -> Any:
        """Return the mean loss of a batch, a native scalar. Called under autocast.

        Args:
            model: the prepared model.
            batch: what ``batches`` yielded, with each array as a native tensor on the session's device.
        """

    def batches(self, epoch: int, /) -> Iterable[Any]:
        """Return the batches of an epoch, numbered from 0: arrays, or tuples, lists or mappings of them.

        A resumed run asks for the same epoch again and needs the same batches in the same order.
        """


@dataclass(frozen=True)
class Snapshot:
    """A training between two steps.

    Attributes:
        weights, optimizer: what ``export_weights`` and ``export_optimizer`` returned.
        loss: the mean loss of the step that led here; 0 before the first.
        batch_size: the number of elements in the largest array of a batch.
    """

    weights: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    loss: float = 0.0
    batch_size: int = 1


@dataclass(frozen=True)
class ParityValue:
    """A value that two backends must agree on, up to rounding.

    Attributes:
        layer, what: where it is, such as "conv2.kernel" and "gradient".
        value: a numpy array.
        depth: the number of operations that it came through, each of which rounds.
        terms: the most terms that one of its numbers is the sum of.
        floor: the relative error of storing it.
        scale: a norm to compare errors to; 0 takes the value's own.
    """

    layer: str
    what: str
    value: Any
    depth: int
    terms: int = 1
    floor: float = field(default=0.0)
    scale: float = field(default=0.0)
