"""A prepared Trainer: what a step does with its gradients."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Protocol

from unifiedamp.backend import NonFiniteReport, StepReason, errors, result

from .._types import Trainer
from ..distributed.workers import CONDITION_KEY, WorkerFlags
from ..patches import OverwriteGradients
from .gradients import GradientBuffer, Gradients
from .master_weights import MasterWeights
from .multi_tensor import all_finite
from .native_calls import check_backward, guard_steps
from .param_dtypes import ParamDtypes
from .rounded_weights import RoundedWeights
from .scaler import SessionScaler, TrainerScaler, attach_scaler
from .update import LARGEST_RESCALED, WeightUpdate


class Follower(Protocol):
    """What is called around each applied step of a Trainer."""

    def check(self) -> None:
        """Refuse a step, or the Trainer's own, where that must not be now."""

    def begin(self) -> None:
        """Note that parameters are about to be updated."""

    def end(self) -> None:
        """Note that they were."""


class PreparedOptimizer:
    """One Trainer under one session.

    Args:
        trainer: a ``gluon.Trainer`` that updates its weights itself.
        names: id of a Parameter → its name for users.
        scaler: the session's.
        masters: the Trainer's float32 master weights, or what rounds its bfloat16 weights; None without.
        rescales, reduce_dtype, settings, emulated: see ``GradientBuffer``.

    Attributes:
        buffer: the gradients since the last step.
        overwriting: turns off ``grad_req="add"``.
        dtypes: of the parameters, when they were prepared.
        report: where the last non-finite step came from.
        followers: called around its applied steps.
    """

    def __init__(
        self,
        trainer: Trainer,
        names: dict[int, str],
        scaler: SessionScaler,
        masters: MasterWeights | RoundedWeights | None = None,
        rescales: bool = False,
        reduce_dtype: str | None = None,
        settings: Callable[[], Mapping[str, str]] = dict,
        emulated: Container[int] = (),
    ) -> None:
        self.trainer, self.masters = trainer, masters
        self.overwriting = OverwriteGradients(trainer._params)
        self.overwriting.apply()
        self.buffer = GradientBuffer(trainer, names, masters is not None, rescales, reduce_dtype, settings, emulated)
        self.dtypes = ParamDtypes(trainer._params, self.buffer.name)
        self._update = WeightUpdate(trainer, masters)
        self._conditions = WorkerFlags(trainer, CONDITION_KEY)
        self.followers: list[Follower] = []
        self._patches = [guard_steps(trainer, self.buffer, self._check_followers)]
        self.report = NonFiniteReport()
        self._scaler = scaler
        if scaler.enabled:
            self._patches.append(attach_scaler(trainer, TrainerScaler(scaler)))

    def close(self) -> None:
        """Give the Trainer back as it was."""
        self.overwriting.undo()
        if isinstance(self.masters, RoundedWeights):
            self.masters.moments.release()
        for patch in self._patches:
            patch.undo()

    # -- the step ------------------------------------------------------------------------------------------------

    def unscale(self) -> None:
        """Sum over contexts, decide finiteness on the raw gradients, then divide them by the scale."""
        buffer = self.buffer
        check_backward([buffer], "unscale")
        buffer.reduce()
        contexts = buffer.gradients()
        if self._scaler.enabled:
            self._check_finite(contexts)
        buffer.divide(contexts, self._scaler.state.scale)

    def _check_finite(self, contexts: Gradients) -> bool:
        buffer = self.buffer
        buffer.found_inf = not all_finite([entry.grad for entries in contexts for entry in entries])
        if buffer.found_inf:
            self.report = self._nonfinite_report(contexts)
        return buffer.found_inf

    def _nonfinite_report(self, contexts: Gradients) -> NonFiniteReport:
        buffer = self.buffer
        bad = [buffer.name(e.place) for entries in contexts for e in entries if not all_finite([e.grad])]
        loss_was_finite = all_finite([loss.reshape((1,)) for loss in buffer.losses]) if buffer.losses else None
        return NonFiniteReport(tuple(dict.fromkeys(bad)), loss_was_finite)

    def step(self) -> StepReason:
        """Apply or skip, drop the gradients; return the reason of ``StepResult``."""
        buffer = self.buffer
        check_backward([buffer], "step")
        dropped = buffer.condition is not None and self._conditions.any([buffer.condition])[0]
        if not buffer.unscaled:
            buffer.reduce()
        contexts = buffer.gradients()
        if not any(contexts):
            buffer.restart()
            return result.NO_GRADIENTS
        found = buffer.found_inf
        if found is None:
            found = self._scaler.enabled and self._check_finite(contexts)
        if not (found or dropped):
            self._apply(contexts)
        buffer.zero_grad(contexts)
        return result.NON_FINITE if found else result.DISCARDED if dropped else result.APPLIED

    def _apply(self, contexts: Gradients) -> None:
        buffer, scale = self.buffer, self._scaler.state.scale
        if scale > LARGEST_RESCALED and not buffer.unscaled:
            buffer.divide(contexts, scale)
        self._check_followers()
        for follower in self.followers:
            follower.begin()
        self._update.apply(contexts, 1.0 if buffer.unscaled else scale)
        for follower in self.followers:
            follower.end()

    def _check_followers(self) -> None:
        for follower in self.followers:
            follower.check()

    def rollback(self) -> bool:
        """Drop the window of an interrupted call; return whether the update had begun and was not done."""
        self._scaler.forget(id(self))
        self.buffer.rollback()
        return self._update.rollback()

    def no_gradients_message(self) -> str:
        """Return what to tell the user when no backward pass reached this Trainer's parameters."""
        names = errors.first_names(
            self.buffer.name(i) for i, p in enumerate(self.trainer._params) if p.grad_req != "null"
        )
        return (
            f"amp.step: no gradient reached the Trainer's parameters ({names}) since its last step; nothing was "
            "applied and the loss scale stays. Does the loss depend on them?"
        )
