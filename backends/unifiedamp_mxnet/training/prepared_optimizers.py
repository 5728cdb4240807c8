"""All prepared Trainers of one session."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from unifiedamp.backend import ScaleState, SessionSpec, rank_settings, rounding

from .._types import HostArray, Parameter, Trainer, Undo
from ..precision.bfloat16_bits import write_rounded
from ..precision.low_precision_params import Arrays
from ..precision.policies import holds_rounded
from .master_weights import MasterWeights, create_states
from .prepared_optimizer import PreparedOptimizer
from .rounded_weights import RoundedWeights
from .scaler import SessionScaler


class PreparedOptimizers:
    """Trainer → :class:`PreparedOptimizer`.

    Args:
        spec: for master weights, and whether gradients have another size than the loss's.
        scaler: the session's.
        originals: id of a Parameter → its float32 arrays before the session cast it.
        emulated: ids of the Parameters whose float32 arrays hold bfloat16 numbers.
        fuse: tunes a Trainer; yields what undoes it.
    """

    def __init__(
        self,
        spec: SessionSpec,
        scaler: SessionScaler,
        originals: Mapping[int, Arrays],
        emulated: Container[int],
        fuse: Callable[[Trainer], Iterable[Undo]],
    ) -> None:
        self._spec, self._scaler, self._originals, self._fuse = spec, scaler, originals, fuse
        self._emulated = emulated
        self._policy = spec.policy
        self._master_weights, self._reduce_dtype = spec.master_weights, spec.reduce_dtype
        self._rescales = spec.loss_scale.scale_bounds != (1, 1) or spec.accumulate_steps > 1
        self._prepared: dict[int, PreparedOptimizer] = {}
        self._undo: list[Undo] = []
        self._on_new: list[Callable[[PreparedOptimizer], None]] = []

    def __getitem__(self, trainer: Trainer) -> PreparedOptimizer:
        return self._prepared[id(trainer)]

    def __iter__(self) -> Iterator[PreparedOptimizer]:
        return iter(self._prepared.values())

    def __len__(self) -> int:
        return len(self._prepared)

    def rounded(self) -> Iterator[tuple[PreparedOptimizer, RoundedWeights]]:
        """Those whose updates are rounded, with their weights: see ``RoundedWeights``."""
        for prepared in self:
            if isinstance(prepared.masters, RoundedWeights):
                yield prepared, prepared.masters

    def add(self, trainer: Trainer, names: dict[int, str]) -> None:
        """Prepare a Trainer. Idempotent.

        Args:
            trainer: one that ``prepare_checks.check_prepare`` accepts.
            names: id of a Parameter → its name for users.
        """
        if id(trainer) not in self._prepared:
            masters = self._masters(trainer, names)
            if not isinstance(masters, RoundedWeights):
                create_states(trainer)
            prepared = PreparedOptimizer(
                trainer, names, self._scaler, masters, self._rescales, self._reduce_dtype, self._settings,
                self._emulated,
            )  # fmt: skip
            self._prepared[id(trainer)] = prepared
            self._undo += self._fuse(trainer)
            for call in self._on_new:
                call(prepared)

    def _settings(self) -> dict[str, str]:
        """Return what workers must share; a checkpoint may have set the scale on some."""
        state = self._scaler.state if self._scaler.enabled else ScaleState()
        return {
            **rank_settings.settings_of(self._spec),
            "the present loss scale": f"{state.scale:g}",
            "the number of good steps in a row": str(state.good_steps),
        }

    def state_loaded(self) -> None:
        """Note that this worker loaded a state."""
        for prepared in self:
            prepared.buffer.loaded = True

    def _masters(self, trainer: Trainer, names: dict[int, str]) -> MasterWeights | RoundedWeights | None:
        policy, params = self._policy, trainer._params
        if policy.update is not None or policy.state_dtype is not None or holds_rounded(policy):
            names_of = [names.get(id(param), param.name) for param in params]
            return RoundedWeights(trainer, policy, names_of.__getitem__, self._emulated)
        return MasterWeights(trainer, self._originals) if self._master_weights else None

    def on_new(self, call: Callable[[PreparedOptimizer], None]) -> None:
        """Call ``call`` with each Trainer that is prepared from here on."""
        self._on_new.append(call)

    def begin_region(self) -> None:
        """Refuse parameters that were cast or moved since, and turn off ``grad_req="add"`` where the user has set it.

        Raises:
            ParamDtypeError, PrepareError: see ``ParamDtypes.check``.
        """
        for prepared in self._prepared.values():
            prepared.dtypes.check()
            prepared.overwriting.apply()

    def masters_of(self, param: Parameter) -> Arrays | None:
        """Return the float32 values of a 16-bit parameter, one for each context; None where it has none."""
        if not self._master_weights and self._policy.update is None:
            return None
        found = (prepared.masters.of(param) for prepared in self if prepared.masters is not None)
        before = self._originals.get(id(param)) if self._master_weights else None
        return next((arrays for arrays in found if arrays is not None), before)

    def load_masters(self, param: Parameter, values: HostArray) -> bool:
        """Set a rounded parameter, with a Trainer or without, to float32 values; return False for another one."""
        if any(weights.load(param, values) for _, weights in self.rounded()):
            return True
        if id(param) not in self._emulated:
            return False
        for array in param.list_data():
            write_rounded(array, rounding.nearest(values))
        return True

    def close(self) -> None:
        """Give the Trainers back as they were."""
        for prepared in self:
            prepared.close()
        while self._undo:
            self._undo.pop()()
