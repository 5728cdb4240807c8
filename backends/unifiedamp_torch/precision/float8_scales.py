"""Delayed scaling: the scale of each operand follows from the largest magnitudes of earlier optimizer steps.

As NVIDIA's Transformer Engine has it (``DelayedScaling`` with ``amax_compute_algo="max"``)::

    scale = float8_max / max(amax_history) / 2**margin

The largest magnitudes of an iteration, over all its micro-batches, are kept in one scalar per operand and enter the
history once, where the iteration ends. Otherwise than in Transformer Engine:

- An amax that is inf or nan, and every amax of an iteration in which a step was skipped, is dropped. Transformer Engine
  records it, whereupon the scale stands still until it leaves the history.
- A layer's first iteration scales by present magnitudes. Transformer Engine's first iteration has the scale 1.

- Layers that are given the same inputs in their first iteration (query, key and value) share the scale of the input,
  the smallest of theirs, so that Inductor casts it once for all of them.

As in Transformer Engine (``reduce_amax``), the magnitudes of an iteration are the largest over the ranks that train
together, so that histories and scales are equal on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unifiedamp.backend.amax_history import OPERANDS, operand_limits

from ..distributed.ranks import TrainingRanks
from .float8 import Scales
from .float8_casts import LARGEST_SCALE
from .float8_inputs import FirstInputs


class LayerScales:
    """The scales and largest magnitudes of one layer.

    Args:
        scales: float32 of shape (3,), of its operands; written where iterations end.
        amaxes: float32 of shape (1,) each, of its operands; raised in forward and backward passes.
        inputs: notes the layer's calls until its scales follow from a history.

    Attributes:
        seen: a forward pass that may be trained has run.
        ready: the scales follow from a history.
    """

    def __init__(self, scales: torch.Tensor, amaxes: Sequence[torch.Tensor], inputs: FirstInputs[LayerScales]) -> None:
        self._scales, self.amaxes = [scales[index : index + 1] for index in range(len(OPERANDS))], amaxes
        self._inputs = inputs
        self.seen = self.ready = False

    def of_call(self, x: torch.Tensor) -> Scales:
        """Return what a call of the layer scales by; see :meth:`now`."""
        if not self.ready and torch.is_grad_enabled():
            self._inputs.note(self, x)
        return self.now()

    def now(self) -> Scales:
        """Return what a forward pass that begins scales by, and where it keeps its magnitudes."""
        kept: Sequence[torch.Tensor | None] = (None, None, None)
        if torch.is_grad_enabled():
            kept = self.amaxes
            if not self.seen:
                self.seen = True
        if not self.ready:
            return Scales(None, None, None, *kept)
        return Scales(*self._scales, *kept)

    def share_input(self, leader: LayerScales) -> None:
        """Scale inputs by another layer's scale: the same tensor, as Inductor can see."""
        self._scales[0] = leader._scales[0]


@dataclass
class Histories:
    """The histories of one model's layers, a row per operand of each.

    Attributes:
        layers: name → scales.
        history: float32 of shape (rows, length), the newest iteration first.
        scales: float32 of shape (rows,).
        limits: the largest number that an operand is scaled to, of the same shape.
        amaxes: float32 of shape (1,) each: the largest magnitudes of this iteration.
        inputs: the calls of layers without a history.
        leaders: int64 of shape (rows,): row → the row whose scale it shares, itself for most; None: nothing is shared.
    """

    layers: dict[str, LayerScales]
    history: torch.Tensor
    scales: torch.Tensor
    limits: torch.Tensor
    amaxes: list[torch.Tensor]
    inputs: FirstInputs[LayerScales]
    leaders: torch.Tensor | None = None

    @classmethod
    @torch.inference_mode(False)
    def create(cls, names: Sequence[str], length: int, margin: int, device: torch.device) -> Histories:
        """Return empty histories, and scales of 1."""
        rows = len(names) * len(OPERANDS)
        # In float32, whatever torch's default dtype is.
        history = torch.zeros(rows, length, dtype=torch.float32, device=device)
        scales, amaxes = history.new_ones(rows), [history.new_zeros(1) for _ in range(rows)]
        limits = history.new_tensor(operand_limits(margin) * len(names))
        starts, inputs = range(0, rows, len(OPERANDS)), FirstInputs[LayerScales]()
        layers = {
            name: LayerScales(scales[at : at + 3], amaxes[at : at + 3], inputs)
            for at, name in zip(starts, names, strict=True)
        }
        return cls(layers, history, scales, limits, amaxes, inputs)

    def end(self, amax: torch.Tensor, skipped: torch.Tensor | None) -> None:
        """Take the magnitudes of an iteration, of shape (rows,), into the histories."""
        good = amax.isfinite() & (amax > 0)
        if skipped is not None:
            good = good & (skipped == 0)
        moved = torch.cat([amax[:, None], self.history[:, :-1]], 1)
        self.history.copy_(torch.where(good[:, None], moved, self.history))
        self.set_scales()
        self.discard()

    def set_scales(self) -> None:
        """Set the scales by the histories; where those are empty, the scales stay."""
        largest = self.history.amax(1)
        if self.leaders is not None:
            largest = largest.scatter_reduce(0, self.leaders, largest, "amax")[self.leaders]
        self.scales.copy_(torch.where(largest > 0, (self.limits / largest).clamp(max=LARGEST_SCALE), self.scales))

    @torch.inference_mode(False)
    def share_inputs(self) -> None:
        """Let layers whose calls had the same inputs scale them alike."""
        found = {} if _capturing(self.scales) else self.inputs.leaders()
        self.inputs.clear()
        if not found:
            return
        if self.leaders is None:
            self.leaders = torch.arange(len(self.amaxes), device=self.scales.device)
        row = {layer: index * len(OPERANDS) for index, layer in enumerate(self.layers.values())}
        for layer, leader in found.items():
            layer.share_input(leader)
            self.leaders[row[layer]] = row[leader]

    def discard(self) -> None:
        """Forget the magnitudes of this iteration."""
        torch._foreach_zero_(self.amaxes)


class DelayedScaling:
    """The amax histories of a session's layers, on its device.

    Args:
        length: iterations that a history holds.
        margin: powers of two that are left below float8's maximum.
        device: the session's.
        ranks: those that train together.

    Attributes:
        sizes: layer → its inputs and outputs.
        version: rises where a captured step would scale otherwise.
    """

    def __init__(self, length: int, margin: int, device: torch.device, ranks: TrainingRanks) -> None:
        self._length, self._margin, self._device, self._ranks = length, margin, device, ranks
        self._models: list[Histories] = []
        self.sizes: dict[str, tuple[int, int]] = {}
        self._skipped: torch.Tensor | None = None
        self._stepped = self._begun = False
        self._exchanges = 0
        self.version = 0

    def calibrates(self) -> bool:
        """Return whether this iteration is the first one, in which no layer has a history."""
        return bool(self._models) and not self._begun

    def add(self, sizes: Mapping[str, tuple[int, int]]) -> dict[str, LayerScales]:
        """Return name → scales of the layers of one model.

        Args:
            sizes: name → inputs and outputs.
        """
        if not sizes:
            return {}
        self.sizes.update(sizes)
        self._models.append(Histories.create(list(sizes), self._length, self._margin, self._device))
        return self._models[-1].layers

    # -- iterations ------------------------------------------------------------------------------------------------

    def note_step(self, skipped: torch.Tensor | None) -> None:
        """Take in an optimizer's step of this iteration; ``skipped``: a scalar, 1 where it was skipped."""
        self._stepped = True
        if skipped is not None:
            self._skipped = skipped if self._skipped is None else torch.maximum(self._skipped, skipped)

    @torch.no_grad()
    def end(self) -> None:
        """End an iteration: its magnitudes enter the histories, and set the scales of the next.

        Ranks that train together communicate once, for all layers; not where no optimizer had a step.
        """
        stepped, skipped = self._stepped, self._skipped
        self._stepped, self._skipped = False, None
        if not self._models:
            return
        amax, seen = torch.cat([each for model in self._models for each in model.amaxes]), self._seen()
        if self._ranks.together(False):
            if not stepped:
                self.discard()
                return
            amax, seen = self._over_ranks(amax, seen)
        begin = 0
        for model in self._models:
            rows = len(model.amaxes)
            model.end(amax[begin : begin + rows], skipped)
            begin += rows
        self._note_ready(seen)

    def _layers(self) -> list[LayerScales]:
        return [layer for model in self._models for layer in model.layers.values()]

    def _seen(self) -> list[bool]:
        return [layer.seen for layer in self._layers()]

    def _over_ranks(self, amax: torch.Tensor, seen: list[bool]) -> tuple[torch.Tensor, list[bool]]:
        """Return the largest magnitudes over the ranks, and which layers some rank has seen.

        While layers have no history, the latter is read after 1, 2, 4, 8, ... iterations, since reading it waits for
        the device; every rank does so after the same ones.
        """
        amax = torch.where(amax.isfinite(), amax, torch.inf)  # reductions do not keep nan
        waiting = not _capturing(amax) and not all(layer.ready for layer in self._layers())
        self._exchanges += waiting
        if not waiting or self._exchanges & (self._exchanges - 1):
            self._ranks.reduce(amax)
            return amax, [layer.ready for layer in self._layers()]
        both = torch.cat([amax, torch.tensor(seen, dtype=amax.dtype, device=amax.device)])
        self._ranks.reduce(both)
        return both[: amax.numel()], [value > 0 for value in both[amax.numel() :].tolist()]

    def _note_ready(self, seen: Sequence[bool]) -> None:
        """Scale layers that were seen by their histories from here on."""
        for layer, now in zip(self._layers(), seen, strict=True):
            if now and not layer.ready:
                layer.ready = self._begun = True
                self.version += 1
        for model in self._models:
            model.share_inputs()

    def discard(self) -> None:
        """Forget the magnitudes of an iteration that is discarded."""
        self._stepped, self._skipped = False, None
        for model in self._models:
            model.inputs.clear()
            model.discard()

    # -- state -----------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, Any]:
        """Return layer → its history, a float32 array of shape (3, iterations), the newest first; may synchronize."""
        found: dict[str, Any] = {}
        for model in self._models:
            rows = model.history.cpu().reshape(len(model.layers), len(OPERANDS), -1)
            for name, history in zip(model.layers, rows, strict=True):
                used = int((history > 0).any(0).sum())
                found[name] = history[:, :used].numpy().copy()
        return found

    @torch.no_grad()
    def write(self, histories: Mapping[str, Any]) -> None:
        """Set the histories, of which the newest iterations are kept; layers that are left out start anew."""
        self._begun = False
        for model in self._models:
            rows = torch.zeros(len(model.layers), len(OPERANDS), self._length, dtype=torch.float32)
            for at, (name, layer) in enumerate(model.layers.items()):
                kept = torch.from_numpy(histories[name])[:, : self._length] if name in histories else rows[0, :, :0]
                rows[at, :, : kept.shape[1]] = kept
                layer.seen = layer.ready = bool(kept.any())
                self._begun |= layer.ready
            model.history.copy_(rows.reshape(-1, self._length))
            model.scales.fill_(1.0)
            model.set_scales()
        self.discard()
        self._exchanges = 0
        self.version += 1


def _capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
