"""What ``unifiedamp.compat.mxnet`` needs beyond the roles: casts without regions, and Trainers stepped natively."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from unifiedamp.backend import Policy

from ._types import Trainer
from .distributed.distributed import update_on_trainer
from .precision.casts import CastTable
from .precision.operations import replace_lists
from .precision.process_wide_casts import ProcessWideCasts
from .training.adopted_scaler import AdoptedScaler
from .training.prepare_checks import check_trainer
from .training.scaler import SessionScaler, attach_scaler


class MXNetInterop:
    """The calls of ``mxnet.amp`` over a session.

    Args:
        policy: the session's.
        scaler: the session's loss scale.
    """

    def __init__(self, policy: Policy, scaler: SessionScaler) -> None:
        self._policy, self._scaler = policy, scaler

    def cast_everywhere(
        self,
        compute: Iterable[str] | None = None,
        float32: Iterable[str] | None = None,
        conditional: Iterable[tuple[str, str, Iterable[str]]] | None = None,
    ) -> ProcessWideCasts:
        """Run operators under the session's policy outside regions too, until the returned object is ended.

        Args:
            compute, float32, conditional: lists in place of MXNet's own; see ``operations.replace_lists``.
        """
        table = CastTable(self._policy, scaled=True)
        table.rules = replace_lists(table.rules, compute, float32, conditional)
        return ProcessWideCasts(table)

    def adopt(self, trainer: Trainer, after_step: Callable[[], None]) -> AdoptedScaler:
        """Give the session's scaler to a Trainer that is stepped by its own ``step``.

        Raises:
            WrongObjectError, PrepareError: see ``Training.prepare``.
        """
        check_trainer(trainer)
        update_on_trainer(trainer)
        scaler = AdoptedScaler(self._scaler, trainer, after_step)
        attach_scaler(trainer, scaler)
        return scaler
