"""``amp.ema``: averages of models' parameters, which move at the end of applied steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from unifiedamp.backend import Averaging, WeightAverage, errors

from ..device.arrays import like, whole
from ..layer_paths import plain_name
from ..models.lazy_layers import refuse_lazy
from .gradients import dense, parameters
from .master_weights import Kept
from .moving import Decay, DeviceMover, Group, HostMover, Mover
from .prepared import Optimizer, PreparedObjects
from .scale_state import Found


class AverageDeferred(Exception):
    """A step that is being captured meets parameters whose average does not exist yet."""


class Share:
    """One optimizer's share of one model's average.

    Args:
        optimizer: whose parameters.
        mover: counts its steps.
        true: returns a parameter's true weights.

    Attributes:
        started: the averages have begun to move; before, they equal the parameters.
        pairs: (average, parameter), in which the parameter may be a master.
    """

    def __init__(
        self, optimizer: Optimizer, mover: Mover, true: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:  # fmt: skip
        self.optimizer, self.mover, self.true = optimizer, mover, true
        self.started = False
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._seen: list[int] = [-1]
        self._plain: list[Group] | None = None

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def changed(self) -> bool:
        """Return whether the optimizer's parameters, or where they are, changed since :meth:`set`."""
        return self._seen != [_place(param) for param in parameters(self.optimizer)]

    def set(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Set the pairs."""
        self.pairs = pairs
        self._seen = [_place(param) for param in parameters(self.optimizer)]
        special = any(param.dtype is not torch.float32 or hasattr(param, "to_local") for _, param in pairs)
        self._plain = None if special else self._groups()

    def start(self) -> None:
        """Set the averages to the parameters, unless they have begun to move."""
        if not self.started:
            self.copy()
            self.started = True

    def copy(self) -> None:
        """Set the averages to the parameters."""
        for average, param in self.pairs:
            average.copy_(self.true(param))

    def move(self, found: Found | None) -> None:
        """Move the averages, unless the step was skipped."""
        if self.pairs:
            self.mover.move(self._plain or self._groups(), found)

    def _groups(self) -> list[Group]:
        groups: dict[torch.device, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for average, param in self.pairs:
            averages, params = groups.setdefault(param.device, ([], []))
            averages.append(dense(average))
            params.append(dense(self.true(param)))
        return [Group(averages, _widened(averages, params)) for averages, params in groups.values()]


def _place(param: torch.Tensor) -> int:
    return id(param) if hasattr(param, "to_local") else param.data_ptr()


def _widened(averages: list[torch.Tensor], params: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return parameters in float32 and the averages' layout."""
    other = [index for index, param in enumerate(params) if param.dtype is not torch.float32]
    if other:
        copies = [torch.empty_like(averages[index]) for index in other]
        torch._foreach_copy_(copies, [params[index] for index in other])
        for index, copy in zip(other, copies, strict=True):
            params[index] = copy
    return params


class ModelAverage(WeightAverage):
    """The average of one model's parameters, by their ids.

    Args:
        model: whose.
        prepared: the session's objects.
        make_mover: makes what moves the share of one optimizer.
        changed: called when graphs that were captured before would move another average than this one.
        stopped: called with this average when it stops.
    """

    def __init__(
        self, model: torch.nn.Module, prepared: PreparedObjects, make_mover: Callable[[], Mover],
        changed: Callable[[], None], stopped: Callable[[ModelAverage], None],
    ) -> None:  # fmt: skip
        self._model, self._prepared, self._make_mover = model, prepared, make_mover
        self._changed, self._stopped = changed, stopped
        self._averages: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._shares: dict[int, Share] = {}
        self._kept: list[tuple[torch.Tensor, Kept]] | None = None
        self._hooks: list[Any] = []
        for optimizer in prepared.optimizers:
            self._refresh(optimizer)

    # -- steps ---------------------------------------------------------------------------------------------------

    def begin(self, optimizer: Optimizer, capturing: bool) -> None:
        """Before an optimizer's step: take in parameters that it got since, and start where that is due."""
        if self._kept is not None:
            _refuse()
        share = self._shares.get(id(optimizer))
        if share is not None and share.started and not share.changed():
            return
        if capturing:
            raise AverageDeferred
        share = self._refresh(optimizer)
        earlier = self._moving(share)
        if earlier and not share.started:  # the optimizer trains what another one trained before
            share.started = True
            share.mover.write(max(each.mover.read() for each in earlier))
        share.start()

    def _moving(self, share: Share) -> list[Share]:
        """Return shares of other optimizers that have begun to move averages of this share."""
        own = {id(average) for average, _ in share.pairs}
        others = [each for each in self._shares.values() if each is not share and each.started]
        return [each for each in others if any(id(average) in own for average, _ in each.pairs)]

    def end(self, optimizer: Optimizer, found: Found | None) -> None:
        """After an optimizer's step."""
        self._shares[id(optimizer)].move(found)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _refresh(self, optimizer: Optimizer) -> Share:
        share = self._shares.get(id(optimizer))
        if share is None:
            share = self._shares[id(optimizer)] = Share(
                optimizer, self._make_mover(), self._prepared.compensations.true
            )
        own = {id(param) for param in self._model.parameters()}
        pairs = []
        for param in parameters(optimizer):
            model_param = self._prepared.masters.model_param(param)
            if id(model_param) in own and (param.is_floating_point() or param.is_complex()):
                pairs.append((self._average(model_param, param), param))
        share.set(pairs)
        self._changed()
        return share

    def _average(self, model_param: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
        """Return a parameter's average, in the parameter's layout; made where there is none."""
        known = self._averages.get(id(model_param))
        if known is not None and known[1].stride() == param.stride():
            return known[1]
        wide = torch.complex64 if param.is_complex() else torch.float32
        average = torch.empty_like(param, dtype=wide, requires_grad=False).copy_(param if known is None else known[1])
        self._averages[id(model_param)] = (model_param, average)
        return average

    # -- reading and writing -------------------------------------------------------------------------------------

    @property
    def trains(self) -> bool:
        """Whether an optimizer trains a parameter of the model."""
        return any(self._shares.values())

    def updates(self) -> list[int]:
        return [share.mover.read() for share in self._shares.values() if share]

    @torch.no_grad()
    def read(self) -> dict[str, Any]:
        return {
            name: whole(average).resolve_conj().to("cpu", copy=True).numpy() for name, average in self._named().items()
        }

    def _named(self) -> dict[str, torch.Tensor]:
        self._catch_up()
        tensors = self._model.state_dict(keep_vars=True).items()
        return {plain_name(name): self._averages[id(each)][1] for name, each in tensors if id(each) in self._averages}

    def _catch_up(self) -> None:
        """Set averages that no step has moved to the present weights."""
        if self._kept is None:
            for share in self._shares.values():
                if not share.started and not self._moving(share):
                    share.copy()

    @torch.no_grad()
    def write(self, weights: Mapping[str, Any], updates: Sequence[int]) -> None:
        for name, average in self._named().items():
            average.copy_(like(average, torch.from_numpy(weights[name])))
        self._set(updates, True)

    def restart(self) -> None:
        self._set([0] * len(self.updates()), False)

    def _set(self, updates: Sequence[int], started: bool) -> None:
        shares = [share for share in self._shares.values() if share]
        for share, count in zip(shares, updates, strict=True):
            share.mover.write(count)
            share.started = started
        self._changed()

    # -- evaluation ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def swap_in(self) -> None:
        self._catch_up()
        masters = self._prepared.masters
        self._kept = [(param, masters.keep(param)) for param, _ in self._averages.values()]
        for optimizer in self._prepared.optimizers:
            self._hooks.append(optimizer.register_step_pre_hook(_refuse))
        for param, average in self._averages.values():
            masters.write(param, average)
        torch.clear_autocast_cache()

    @torch.no_grad()
    def swap_out(self) -> None:
        for param, kept in self._kept or ():
            self._prepared.masters.restore(param, kept)
        self._kept = None
        while self._hooks:
            self._hooks.pop().remove()
        torch.clear_autocast_cache()

    def stop(self) -> None:
        with torch.no_grad():
            self._catch_up()
        for share in self._shares.values():
            share.started = True
        self._stopped(self)


def _refuse(*_: object) -> NoReturn:
    raise errors.StepOrderError(
        "a step was called while the averages of amp.ema are swapped in, and would change them instead of the model's "
        "weights; leave 'with ema.swapped():' first"
    )


class MovingAverages:
    """The averages of one session, as its steps see them.

    Args:
        prepared: the session's objects.
        device: the session's.
        reads_without_sync: see ``Device``.

    Attributes:
        in_use: there are some; without any, calls can be left out.
        version: changes whenever a captured step must be captured anew.
    """

    def __init__(self, prepared: PreparedObjects, device: torch.device, reads_without_sync: bool) -> None:
        self._prepared, self._device, self._on_host = prepared, device, reads_without_sync
        self._all: list[ModelAverage] = []
        self.in_use = False
        self.version = 0

    def add(self, model: torch.nn.Module, decay: Decay) -> ModelAverage:
        """Add an average of a model.

        Raises:
            PrepareError: no optimizer trains the model, or it has lazy layers that have seen no batch.
        """
        refuse_lazy(model, "amp.ema")
        average = ModelAverage(model, self._prepared, lambda: self._mover(decay), self._change, self._remove)
        if not average.trains:
            raise errors.PrepareError(
                f"amp.ema: no optimizer that amp.prepare was given trains a parameter of this {type(model).__name__}; "
                "prepare the model with its optimizer first"
            )
        self._all.append(average)
        self.in_use = True
        return average

    def _mover(self, decay: Decay) -> Mover:
        return HostMover(decay) if self._on_host else DeviceMover(decay, self._device)

    def _change(self) -> None:
        self.version += 1

    def _remove(self, average: ModelAverage) -> None:
        self._all = [each for each in self._all if each is not average]
        self.in_use = bool(self._all)
        self._change()

    def begin(self, optimizer: Optimizer, capturing: bool) -> None:
        """Note that a step begins.

        Raises:
            StepOrderError: averages are swapped in.
            AverageDeferred: the step is being captured, and needs one uncaptured step before.
        """
        for average in self._all:
            average.begin(optimizer, capturing)

    @torch.no_grad()
    def end(self, optimizer: Optimizer, found: Found | None) -> None:
        """Move averages after a step: applied where ``found`` is None or holds nothing, else skipped."""
        for average in self._all:
            average.end(optimizer, found)


class TorchAveraging(Averaging):
    """Averages beside the parameters, moved by one kernel at the end of a step, also in captured ones.

    Args:
        averages: the session's.
    """

    means = "one fused kernel at the end of a step, which skips with it"

    def __init__(self, averages: MovingAverages) -> None:
        self._averages = averages

    def start(self, model: torch.nn.Module, decay: float, warmup: bool) -> WeightAverage:
        return self._averages.add(model, Decay(decay, warmup))
