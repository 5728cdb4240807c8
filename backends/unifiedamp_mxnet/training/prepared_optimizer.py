"""A prepared Trainer: what a step does with its window of gradients."""

from __future__ import annotations

from typing import Any

from unifiedamp.backend import NonFiniteReport, errors, result

from .gradients import Entry, Window
from .master_weights import Masters
from .multi_tensor import all_finite, global_norm
from .native_calls import check_backward, guard_steps
from .scaler import Scaler, TrainerScaler

LARGEST_RESCALED = 2.0**120
"""Above it ``rescale_grad`` could be a subnormal float32, which MXNet's optimizers refuse."""

_NATIVE = ("_amp_loss_scaler", "_amp_original_scale")


class Bound:
    """One Trainer under one session.

    Args:
        trainer: a ``gluon.Trainer`` that updates its weights itself.
        names: id of a Parameter → its name for users.
        scaler: the session's.
        masters: the Trainer's float32 master weights, None without.
        rescales: see ``Window``.

    Attributes:
        window: the gradients since the last step.
        report: where the last non-finite step came from.
    """

    def __init__(
        self,
        trainer: Any,
        names: dict[int, str],
        scaler: Scaler,
        masters: Masters | None = None,
        rescales: bool = False,
    ) -> None:
        self.trainer = trainer
        self.masters = masters
        self.window = Window(trainer, names, masters, rescales)
        self._end_guard = guard_steps(trainer, self.window)
        self.report = NonFiniteReport()
        self._scaler = scaler
        self._found_before = {name: vars(trainer)[name] for name in _NATIVE if name in vars(trainer)}
        if scaler.enabled:
            trainer._amp_loss_scaler = TrainerScaler(scaler)
            trainer._amp_original_scale = trainer._scale

    def close(self) -> None:
        """Give the Trainer back as it was."""
        self.window.restore()
        self._end_guard()
        for name in _NATIVE:
            vars(self.trainer).pop(name, None)
        vars(self.trainer).update(self._found_before)

    # -- editing -------------------------------------------------------------------------------------------------

    def unscale(self) -> None:
        """Sum over contexts, decide finiteness on the raw gradients, then divide them by the scale."""
        window = self.window
        check_backward([window], "unscale")
        window.reduce()
        contexts = window.fresh()
        if self._scaler.enabled:
            self._look(contexts)
        window.divide(contexts, self._scaler.state.scale)

    def _look(self, contexts: list[list[Entry]]) -> bool:
        window = self.window
        window.found_inf = not all_finite(entry.grad for entries in contexts for entry in entries)
        if window.found_inf:
            self.report = self._explain(contexts)
        return window.found_inf

    def _explain(self, contexts: list[list[Entry]]) -> NonFiniteReport:
        window = self.window
        bad = [window.name(e.index) for entries in contexts for e in entries if not all_finite([e.grad])]
        loss_was_finite = all_finite([loss.reshape((1,)) for loss in window.losses]) if window.losses else None
        return NonFiniteReport(tuple(dict.fromkeys(bad)), loss_was_finite)

    def clip_norm(self, max_norm: float) -> Any:
        """Clip the global norm on each context (they agree once gradients are summed); return the first one's."""
        norms = [(entries, global_norm(entry.grad for entry in entries)) for entries in self.window.fresh() if entries]
        for entries, norm in norms:
            value = float(norm.asnumpy().reshape(()))
            if value > max_norm:
                for _, grad, _ in entries:
                    grad *= max_norm / value
        return norms[0][1] if norms else None

    def clip_value(self, clip_value: float) -> None:
        """Clamp every gradient to [-clip_value, clip_value]."""
        for entries in self.window.fresh():
            for _, grad, _ in entries:
                grad[:] = grad.clip(-clip_value, clip_value)

    def gradients(self) -> dict[str, Any]:
        """Return name → gradient; on several contexts, name → the list of its gradients, one for each."""
        contexts = self.window.fresh()
        found: dict[str, list[Any]] = {}
        for entries in contexts:
            for entry in entries:
                found.setdefault(self.window.name(entry.index), []).append(entry.grad)
        return {name: grads[0] if len(contexts) == 1 else grads for name, grads in found.items()}

    # -- the step ------------------------------------------------------------------------------------------------

    def step(self) -> str:
        """Apply or skip, empty the window; return the reason of ``StepResult``."""
        window = self.window
        check_backward([window], "step")
        if not window.unscaled:
            window.reduce()
        contexts = window.fresh()
        if not any(contexts):
            window.restart()
            return result.NO_GRADIENTS
        found = window.found_inf
        if found is None:
            found = self._scaler.enabled and self._look(contexts)
        if not found:
            if self._scaler.state.scale > LARGEST_RESCALED and not window.unscaled:
                window.divide(contexts, self._scaler.state.scale)
            scale = 1.0 if window.unscaled else self._scaler.state.scale
            window.apply(contexts, self.trainer._scale / scale)
        window.empty(contexts)
        return result.NON_FINITE if found else result.APPLIED

    def rollback(self) -> bool:
        """Drop the window of an interrupted call; return whether the update had begun and was not done."""
        self._scaler.forget(id(self))
        return self.window.rollback()

    def no_gradients_message(self) -> str:
        """Return what to tell the user when no backward pass reached this Trainer's parameters."""
        names = errors.first_names(
            self.window.name(i) for i, p in enumerate(self.trainer._params) if p.grad_req != "null"
        )
        return (
            f"amp.step: no gradient reached the Trainer's parameters ({names}) since its last step; nothing was "
            "applied and the loss scale stays. Does the loss depend on them?"
        )
