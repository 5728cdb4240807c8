"""The calls of one training step: core sees to their order, the backend does the work."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..backend import Backend, Capabilities, ScaledLoss, Support, result
from ..backend.result import StepResult
from ..errors import AmpError, ConfigError, StepOrderError, UnsupportedError, WrongObjectError
from ..loss_scale import LossScale
from ..policy import Policy
from ..recording.recorder import Recorder
from .closed_session import refuse
from .interruption import REFUSALS, GuardedLoss, Interruptions
from .scale_monitor import Watch
from .step_order import ReplicaWindows, Slot, Window


class StepCalls:
    """The base of ``Amp`` that a loop's steps go through.

    Args:
        backend: the session's.
        accumulate_steps: micro-batches per optimizer step.
        loss_scale: the loss scale in force.
    """

    def __init__(self, backend: Backend, accumulate_steps: int, loss_scale: LossScale) -> None:
        self.backend = backend
        self._training = backend.training
        self._tracing: Callable[[], bool] = backend.compiler.tracing if backend.compiler else _never
        self._window: Window | ReplicaWindows = (
            ReplicaWindows(accumulate_steps, backend.distributed.replica)
            if backend.distributed and backend.distributed.runs_replicas
            else Window(accumulate_steps)
        )
        self._scaling = loss_scale.enabled
        self._watch = Watch(backend, loss_scale)
        if loss_scale.enabled:
            backend.training.on_native_steps(
                self._watch.after_step, self._watch.look, lambda: self._watch.hooks is not None
            )
        self._recorder: Recorder | None = None
        self._models: list[Any] = []
        self._closed = False
        self._known_scheduler: Any = None
        self._interruptions = Interruptions(backend, self._window, self._tell_discarded)

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do on this device, each answer with a reason."""
        return self.backend.capabilities()

    def autocast(self, enabled: bool = True, policy: str | Policy | None = None) -> AbstractContextManager[Any]:
        """Return a region that runs under the policy; nestable, thread-local.

        Args:
            enabled: False runs the region without autocast.
            policy: another policy for this region; None takes the session's.
        """
        if isinstance(policy, str):
            policy = Policy.parse(policy)
        self._window.enter_region()
        return self.backend.precision.autocast(enabled, policy)

    def inference(self, *models: Any) -> AbstractContextManager[Any]:
        """Return a region under the policy without gradients, with models in evaluation mode.

        Args:
            *models: the models to evaluate; none given means all prepared ones.
        """
        return self.backend.precision.inference(models or tuple(self._models))

    def scale_loss(self, loss: Any, optimizers: Any) -> AbstractContextManager[ScaledLoss]:
        """Return a context that yields the scaled loss: ``.backward()``, and ``.value`` in float32.

        Args:
            loss: a scalar computed inside ``autocast``.
            optimizers: the optimizer, or the list of optimizers, that the loss trains.

        Raises:
            StepOrderError: no autocast region was entered in this iteration.
            LossError: the loss is not a scalar.
            UnsupportedError: the framework differentiates functions only; ``backward`` takes one.
        """
        if not self._context_form:
            raise UnsupportedError(
                f"amp.scale_loss: backend {self.backend.name!r} lacks this form: {self._context_form.reason}; "
                "amp.backward(closure, optimizer) means the same"
            )
        slots = self._slots(optimizers, "scale_loss")
        if self._window.begin_scale(slots):
            self._end_open_iteration()
        scaled = self._training.scale_loss(loss, [slot.optimizer for slot in slots])
        return GuardedLoss(scaled, slots, self._interruptions)

    def backward(self, closure: Callable[[], Any], optimizers: Any) -> Any:
        """Run ``closure`` under autocast, scale its loss and differentiate.

        An exception out of it, the closure's included, discards the window: its gradients are dropped, and the next
        loss starts a new one.

        Args:
            closure: returns a scalar loss.
            optimizers: the optimizer, or the list of optimizers, that the loss trains.

        Returns:
            The unscaled loss, native.
        """
        slots = self._slots(optimizers, "backward")
        self._window.enter_region()
        if self._window.begin_scale(slots):
            self._end_open_iteration()
        optimizers = [slot.optimizer for slot in slots]
        return self._interruptions.run(slots, "backward", self._training.backward, closure, optimizers)

    def unscale(self, optimizer: Any) -> None:
        """Divide the gradients by the scale, once; a no-op inside an accumulation window and when done before."""
        self._unscaled_slot(optimizer, "unscale")

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        """Clip the global 2-norm of the true gradients; a no-op inside an accumulation window.

        Args:
            optimizer: a prepared optimizer.
            max_norm: the largest norm, positive.

        Returns:
            The norm before clipping, a native scalar; None inside an accumulation window.
        """
        _require_positive(max_norm, "clip_grad_norm: max_norm")
        slot = self._unscaled_slot(optimizer, "clip_grad_norm")
        if slot is None:
            return None
        return self._clip(slot, "clip_grad_norm", max_norm)

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """Clamp the true gradients to [-clip_value, clip_value]; a no-op inside an accumulation window."""
        _require_positive(clip_value, "clip_grad_value: clip_value")
        slot = self._unscaled_slot(optimizer, "clip_grad_value")
        if slot is not None:
            self._clip(slot, "clip_grad_value", clip_value)

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        """Return name → native gradient, scaled before ``unscale`` and true after it; empty between windows."""
        return self._training.gradients(self._window.slot(optimizer, "gradients").optimizer)

    def step(self, optimizer: Any, scheduler: Any = None) -> StepResult:
        """Look for inf and nan, apply or skip, move the scale, empty the gradients.

        Args:
            optimizer: a prepared optimizer.
            scheduler: anything with ``step()``; stepped only when the optimizer's step was applied (looking at that
                may wait for the device).

        Raises:
            StepOrderError: no loss was scaled in this iteration; a scheduler inside a compiled step that is replayed.
            WrongObjectError: the scheduler has no ``step``, or one that needs arguments. Nothing is done.
            LossScaleExhausted: too many skips in a row.
        """
        window = self._window
        if scheduler is not None:
            self._check_scheduler(scheduler)
        slot = self._slot(optimizer, "step")
        window.check_step(slot, "step")
        if window.accumulating(slot):
            window.end_micro_batch(slot)
            return StepResult(self._not_applied(result.ACCUMULATING))
        ends = window.ends_iteration(slot)
        recorder = self._recorder
        try:
            if recorder is not None and not slot.unscaled:
                recorder.before_unscale(slot.optimizer, slot.index)
            outcome = self._training.step(slot.optimizer, ends)
            window.end_step(slot, ends)
        except BaseException as error:
            self._interruptions.discard([slot], "step", error)
            raise
        if scheduler is not None and outcome.applied:
            scheduler.step()
        leads = window.leads() and not self._tracing()
        if recorder is not None and leads:
            recorder.after_optimizer(outcome)
            recorder.after_steps(int(ends))
        if ends and self._scaling and leads:
            self._watch.after_step()
        return outcome

    def discard_step(self, optimizer: Any) -> StepResult:
        """Drop the window's gradients (a guard of your own fired): nothing is applied, the scale stays.

        Call it too where your own code caught an exception between ``backward`` and ``step`` (Ctrl-C in a notebook)
        and the loop goes on with another batch. Harmless where there is nothing to drop.
        """
        slot = self._slot(optimizer, "discard_step")
        slot.refusal = ""
        ends = self._window.ends_iteration(slot)
        self._training.zero_grad(slot.optimizer)
        self._window.end_step(slot, ends)
        self._tell_discarded()
        if ends:
            self._training.update_scale()
        return StepResult(self._not_applied(result.DISCARDED))

    # -- compiled steps ------------------------------------------------------------------------------------------

    def _watched(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``compiled``, with a look at the scale, and the recorder's, after each call that replayed a trace."""
        window, name = self._window, getattr(compiled, "__name__", "the step")
        ends: set[Any] = set()  # the orders of calls at entry from which a call ends an iteration

        @functools.wraps(compiled)
        def watched(*args: Any, **kwargs: Any) -> Any:
            recorder, counted = self._recorder, self._watch.steps
            recorded = None if recorder is None else recorder.step
            if self._closed:
                refuse(f"compile: {name}()")
            self._interruptions.check()
            entered, ended = window.snapshot(), window.ended
            try:
                output = compiled(*args, **kwargs)
            except AmpError:
                raise  # calls that ran have discarded what they had to
            except BaseException as error:
                self._interruptions.discard([*window.slots.values()], f"compile: {name}()", error)
                raise
            if window.ended != ended:
                ends.add(entered)
            # Where the call replayed a trace, amp.step did not run.
            if recorder is not None and recorder.step == recorded and entered in ends:
                recorder.after_steps()
            if self._scaling and self._watch.steps == counted:
                self._watch.after_step()
            return output

        return watched

    # -- inside --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _context_form(self) -> Support:
        return self.capabilities.feature("context_form")

    def _slots(self, optimizers: Any, call: str) -> list[Slot]:
        many: Sequence[Any] = optimizers if isinstance(optimizers, (list, tuple)) else (optimizers,)
        if not many:
            raise WrongObjectError(f"amp.{call}: name the optimizer that this loss trains; the list is empty")
        return [self._slot(optimizer, call) for optimizer in many]

    def _slot(self, optimizer: Any, call: str) -> Slot:
        self._interruptions.finish()
        return self._window.slot(optimizer, call)

    def _end_open_iteration(self) -> None:
        """An optimizer that had its step gets a new loss, so the iteration before ends here."""
        self._training.update_scale()
        if self._recorder is not None and not self._tracing():
            self._recorder.after_steps()

    def _unscaled_slot(self, optimizer: Any, call: str) -> Slot | None:
        slot = self._slot(optimizer, call)
        self._window.check_step(slot, call)
        if self._window.accumulating(slot):
            return None
        if not slot.unscaled:
            self._interruptions.run([slot], call, self._unscale, slot, refusals=REFUSALS)
        return slot

    def _clip(self, slot: Slot, call: str, limit: float) -> Any:
        clip = getattr(self._training, call)
        return self._interruptions.run([slot], call, clip, slot.optimizer, limit, refusals=REFUSALS)

    def _unscale(self, slot: Slot) -> None:
        if self._recorder is not None:
            self._recorder.before_unscale(slot.optimizer, slot.index)
        self._training.unscale(slot.optimizer)
        slot.unscaled = True

    def _tell_discarded(self) -> None:
        if self._recorder is not None and not self._tracing():
            self._recorder.discarded()

    def _not_applied(self, reason: str) -> Callable[[], result.StepValues]:
        def read() -> result.StepValues:
            scale = self._training.read_state().scale
            return result.StepValues(False, False, reason, scale, scale)

        return read

    def _check_scheduler(self, scheduler: Any) -> None:
        if self._tracing():
            raise StepOrderError(
                "amp.step(optimizer, scheduler): a scheduler cannot be gated inside a compiled step; give the "
                "optimizer a schedule of the framework (it counts applied steps only), or step it outside"
            )
        if scheduler is not self._known_scheduler:
            check_scheduler(scheduler)
            self._known_scheduler = scheduler


def _never() -> bool:
    return False


def check_scheduler(scheduler: Any) -> None:
    """Refuse what ``amp.step`` cannot step after an applied step.

    Raises:
        WrongObjectError: it has no ``step``, or one that needs arguments.
    """
    name, step = type(scheduler).__name__, getattr(scheduler, "step", None)
    if not callable(step):
        raise WrongObjectError(f"amp.step(optimizer, scheduler): {name} has no step() to call after an applied step")
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return  # written in C, without a signature
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in variadic]
    if needed:
        raise WrongObjectError(
            f"amp.step(optimizer, scheduler): {name}.step needs {', '.join(needed)}, which amp.step does not know; "
            f"step it yourself: 'if amp.step(optimizer).applied: scheduler.step({', '.join(needed)})', or once per "
            "epoch after validation"
        )


def _require_positive(value: float, what: str) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"{what} must be a positive number, got {value!r}")
