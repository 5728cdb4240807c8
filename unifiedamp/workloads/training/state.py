"""The weights and the optimizer's state of a run as arrays: as the workload exports them, else as the backend does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import CheckpointError, ConfigError
from ...session import Amp
from ..definition.loading import Loaded

Arrays = dict[str, Any]


class State:
    """Reads and writes what a checkpoint holds of a model and its optimizers.

    Args:
        amp: the session.
        workload: which may export weights and optimizer.
        model: the prepared model.
        optimizers: the prepared optimizers.
    """

    def __init__(self, amp: Amp, workload: Loaded, model: Any, optimizers: list[Any]) -> None:
        self._amp, self._workload, self._model, self._trained = amp, workload, model, optimizers

    @property
    def held(self) -> dict[str, str]:
        """Under whose names weights and optimizer are: "" for the workload's, else the backend's name."""
        parts = {"weights": "export_weights", "optimizer": "export_optimizer"}
        return {key: "" if self._workload.has(part) else self._amp.backend.name for key, part in parts.items()}

    def weights(self) -> Arrays:
        """Return the weights; master weights where they exist."""
        if self._workload.has("export_weights"):
            return _arrays(self._workload.call("export_weights", self._amp, self._model), "export_weights")
        return self._amp.master_weights(self._model)

    def optimizer(self) -> Arrays:
        """Return the optimizers' state."""
        if self._workload.has("export_optimizer"):
            found = self._workload.call("export_optimizer", self._amp, self._model, self._passed())
            return _arrays(found, "export_optimizer")
        states = [self._native(each) or {} for each in self._trained]
        return {f"{place}/{name}": value for place, state in enumerate(states) for name, value in state.items()}

    @property
    def keeps_optimizer(self) -> bool:
        """Whether :meth:`optimizer` returns everything that the optimizers hold."""
        return self._workload.has("export_optimizer") or all(self._native(each) is not None for each in self._trained)

    def _native(self, optimizer: Any) -> Arrays | None:
        backend = self._amp.backend
        if not backend.capabilities().feature("float32_weights"):
            return None
        return backend.weights.read_optimizer(optimizer, [self._model])

    def set(self, weights: Mapping[str, Any], optimizer: Mapping[str, Any]) -> None:
        """Set both; :meth:`check` comes first."""
        if self._workload.has("import_weights"):
            self._workload.call("import_weights", self._amp, self._model, dict(weights))
        else:
            self._amp.load_master_weights(self._model, weights)
        if self._workload.has("import_optimizer"):
            self._workload.call("import_optimizer", self._amp, self._model, self._passed(), dict(optimizer))
            return
        for place, each in enumerate(self._trained if self.keeps_optimizer else ()):
            self._amp.backend.weights.write_optimizer(each, [self._model], _of(optimizer, place))

    def check(self, held: Mapping[str, str], weights: Mapping[str, Any], optimizer: Mapping[str, Any]) -> None:
        """Check that saved arrays fit; changes nothing.

        Raises:
            CheckpointError: an array is missing, unexpected or has another shape, or is of another backend.
        """
        for key, mine in self.held.items():
            if held[key] != mine:
                raise CheckpointError(_foreign(key, held[key], mine, self._workload.name))
        check_fits(weights, {name: value.shape for name, value in self.weights().items()})
        if self._workload.has("export_optimizer"):
            check_fits(optimizer, {name: value.shape for name, value in self.optimizer().items()})
            return
        for place, each in enumerate(self._trained if self.keeps_optimizer else ()):
            self._amp.backend.weights.check_optimizer(each, [self._model], _of(optimizer, place))
        known = {str(place) for place in range(len(self._trained))}
        beyond = [name for name in optimizer if name.partition("/")[0] not in known]
        if beyond:
            raise CheckpointError(f"the checkpoint is of another model: it holds optimizer {beyond[0]!r}")

    def _passed(self) -> Any:
        return self._trained if len(self._trained) > 1 else self._trained[0]


def _of(state: Mapping[str, Any], place: int) -> Arrays:
    prefix = f"{place}/"
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _foreign(key: str, theirs: str, mine: str, workload: str) -> str:
    if theirs and mine:
        return (
            f"the checkpoint holds the {key} as backend {theirs!r} names them: to go on under {mine!r}, give "
            f"{workload} export_{key} and import_{key}, and train again"
        )
    now, then = ("has no", "had") if mine else ("has", "had no")
    return f"{workload} {now} export_{key}, and {then} one when the checkpoint was written: nothing was loaded"


def _arrays(found: Any, part: str) -> Arrays:
    import numpy as np

    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f"{part} must return a mapping of names to numpy arrays, got {type(found).__name__}")
    arrays = {name: np.asarray(value) for name, value in found.items()}
    for name, value in arrays.items():
        if value.dtype.kind not in "fiu":
            raise ConfigError(f"{part}: {name!r} must be an array of numbers, got dtype {value.dtype}")
    return arrays


def check_fits(theirs: Mapping[str, Any], mine: Mapping[str, tuple[int, ...]]) -> None:
    """Check that arrays belong to this model.

    Raises:
        CheckpointError: an array is missing, unexpected or has another shape; the message names the first one.
    """
    for name in [*mine, *theirs]:
        if name not in theirs or name not in mine:
            where = "checkpoint" if name not in theirs else "model"
            raise CheckpointError(f"the checkpoint is of another model: {name!r} is not in the {where}")
        if tuple(theirs[name].shape) != tuple(mine[name]):
            raise CheckpointError(
                f"the checkpoint is of another model: {name!r} has shape {tuple(theirs[name].shape)}, "
                f"the model's has {tuple(mine[name])}"
            )
