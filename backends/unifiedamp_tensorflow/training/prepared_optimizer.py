"""One prepared optimizer: what it trains, and a buffer of gradients for each replica."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

from unifiedamp.backend import errors

from .. import patches
from .._types import Optimizer, Tensor
from ..distributed.packing import Packed
from ..distributed.replicas import Replicas
from . import nadam
from .fit_window import FitWindow
from .gradient_buffer import GradientBuffer, Snapshot
from .interruption import UpdateProgress
from .scaler import DeviceScaler
from .trained_variables import TrainedVariables
from .weight_updates import APPLY


class Follower(Protocol):
    """What is called around each applied step of an optimizer, in traces too."""

    def check(self) -> None:
        """Refuse a step that must not be now."""

    def guard(self) -> AbstractContextManager[Any]:
        """Return a context around the step, which may refuse it."""

    def begin(self) -> None:
        """Note that parameters are about to be updated; once for all replicas."""

    def end(self) -> None:
        """Note that they were."""


Snapshots: TypeAlias = "tuple[tuple[int, Snapshot], ...]"


class PreparedOptimizer:
    """What a session keeps of a prepared optimizer.

    Args:
        outer: the optimizer that users hold.
        params: what the optimizer that is applied trains.
        scaler: the session's, None without loss scaling.
        replicas: where the model trains.
        fit_window: the window of ``model.fit``, where windows have several micro-batches; None for others.

    Attributes:
        inner: the optimizer that is applied.
        number: its place among the session's.
        followers: called around its applied steps.
        steps_before: the steps that it had applied before the session counted.
        nonfinite: bool variable: which gradients were not finite at the last skipped step, in the order of names.
    """

    def __init__(
        self, outer: Optimizer, params: TrainedVariables, scaler: DeviceScaler | None, replicas: Replicas,
        fit_window: FitWindow | None = None,
    ) -> None:  # fmt: skip
        self.outer, self.inner, self.params = outer, params.optimizer, params
        self.replicas, self.fit_window = replicas, fit_window
        self._scaler, self.number = scaler, 0
        self.followers: tuple[Follower, ...] = ()
        self._applying = False
        self._unfollow: Callable[[], None] = lambda: None
        self.nonfinite = tf.Variable(
            [False] * len(params.names), trainable=False, name="unifiedamp/not_finite",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )  # fmt: skip
        self._progress, self._partly_updated = UpdateProgress(), False
        self.steps_before = int(self.inner.iterations.numpy())
        nadam.count_on_device(self.inner)
        self._buffers = {0: self._new_buffer()}

    def _new_buffer(self) -> GradientBuffer:
        return GradientBuffer(self.params, self._scaler, self.replicas, type(self.outer).__name__, self.restart_fit)

    def buffer(self) -> GradientBuffer:
        """Return the gradients of the calling replica."""
        replica = self.replicas.here()
        if replica not in self._buffers:
            self._buffers[replica] = self._new_buffer()
        return self._buffers[replica]

    # -- once for all replicas -----------------------------------------------------------------------------------

    def update_where(self, applied: Tensor, count: Callable[[], None]) -> bool:
        """Do what :meth:`apply` does where ``applied``, a bool scalar, holds, without a branch that waits for it.

        Args:
            applied: see above.
            count: called for each replica in the same program: what else a step does.

        Returns:
            Whether that can be done; if not, nothing was.
        """
        if not self._updates_where():
            return False
        self.params.check_addition()
        with self._progress:
            self.replicas.update_where(self.inner, applied, lambda: self.buffer().pairs(), self._packs(), count)
        return True

    def _updates_where(self) -> bool:
        params = self.params
        if self.followers or params.updates is not None or params.masters is not None:
            return False
        present = {name: gradient for buffer in self._buffers.values() for name, gradient in buffer.present.items()}
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in present.values()):
            return False
        variables = [params.applied[name] for name in present.keys() & params.training().keys()]
        return bool(variables) and self.replicas.updates_where(self.inner, variables)

    def _packs(self) -> list[Packed]:
        return [buffer.packed for buffer in self._buffers.values() if buffer.packed is not None]

    def apply(self) -> None:
        """Make the optimizer apply the gradients that are present."""
        self.params.check_addition()
        with self._guarded(), self._progress:
            self._begin_followers()
            self._apply()
            if self.params.masters is not None:
                self.params.masters.master_params_to_model_params(self.buffer().present)
            self._end_followers()

    def _begin_followers(self) -> None:
        for follower in self.followers:
            follower.begin()

    def _end_followers(self) -> None:
        for follower in self.followers:
            follower.end()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        with ExitStack() as stack:
            for follower in self.followers:
                stack.enter_context(follower.guard())
            yield

    def _apply(self) -> None:
        try:
            self._applying = True
            nadam.begin_step(self.inner)
            with nullcontext() if self.params.updates is None else self.params.updates.rounding():
                self.replicas.apply(self.inner, lambda: self.buffer().pairs(), self._packs())
        finally:
            self._applying = False

    # -- followers -----------------------------------------------------------------------------------------------

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Call ``follower`` around every applied step from here on; return what ends that.

        Keras's own loops call the optimizer itself where a step does nothing else: there its method is replaced.
        """
        if not self.followers:
            self._unfollow = patches.override(self.inner, **self._following())
        self.followers = (*self.followers, follower)
        return functools.partial(self._end_following, follower)

    def _end_following(self, follower: Follower) -> None:
        self.followers = tuple([each for each in self.followers if each is not follower])
        if not self.followers:
            self._unfollow()

    def _following(self) -> dict[str, Callable[..., Any]]:
        if self.outer is not self.inner:
            return {}
        native = getattr(self.inner, APPLY)

        @functools.wraps(native)
        def apply(*args: Any, **kwargs: Any) -> Any:
            if self._applying or not self.followers:
                return native(*args, **kwargs)
            with self._guarded():
                self.replicas.once(self._begin_followers)
                result = native(*args, **kwargs)
                self.replicas.once(self._end_followers)
            return result

        return {APPLY: apply}

    def clear(self) -> None:
        """Drop the windows of all replicas, and that of ``fit``."""
        for buffer in self._buffers.values():
            buffer.clear()
        with tf.init_scope():
            self.restart_fit()

    def restart_fit(self) -> None:
        """Drop the window of ``fit``, whose accumulators a loop's window is about to use."""
        if self.fit_window is not None:
            self.fit_window.restart()

    def check_fit(self, call: str) -> None:
        """Refuse ``fit`` where a follower does, and while a loop's window is open, whose accumulators it would use.

        Raises:
            StepOrderError: one is.
        """
        for follower in self.followers:
            follower.check()
        if self.fit_window is not None and not all(buffer.empty() for buffer in self._buffers.values()):
            raise errors.StepOrderError(
                f"{call}: an accumulation window of a loop is open for this {type(self.inner).__name__}; end it by its "
                "last amp.step, or drop it by amp.discard_step"
            )

    def check_native_call(self) -> None:
        """Refuse gradients given to the optimizer itself while it has others, which only the session can unscale.

        Raises:
            StepOrderError: a loss was differentiated for it by the session, and its step has not ended.
        """
        if not self.buffer().empty():
            name = type(self.inner).__name__
            raise errors.StepOrderError(
                f"optimizer.apply_gradients: this {name} has gradients of amp.scale_loss or amp.backward, and "
                "apply_gradients would take them as they are, times the loss scale; amp.step(optimizer) applies them. "
                "Call it in place of apply_gradients, or drop them by amp.discard_step(optimizer)"
            )

    def partly_updated(self) -> bool:
        """Whether an update began and did not end, so that some parameters may be updated and others not."""
        self._partly_updated = self._partly_updated or self._progress.broken()
        if self._partly_updated and not (tf.inside_function() or tf.distribute.has_strategy()):
            self.params.follow_masters()  # an update that ends does so last
        return self._partly_updated

    def accept_parameters(self) -> None:
        """Continue with the parameters as they are."""
        if self._partly_updated:
            self._progress.forgive()
            self._partly_updated = False

    # -- what a skipped step reports -----------------------------------------------------------------------------

    def loss_finite(self) -> Tensor | None:
        """Return whether the unscaled losses are finite, a bool scalar; None where no loss is known."""
        finite = [tf.math.is_finite(loss) for buffer in self._buffers.values() for loss in buffer.losses]
        return (finite[0] if len(finite) == 1 else tf.reduce_all(finite)) if finite else None

    def nonfinite_in(self, flags: Tensor | None, present: Sequence[str]) -> Tensor:
        """Return which of all gradients are not finite, as ``self.nonfinite`` keeps it; ``flags``: of those present."""
        bad, names = tf.logical_not(flags), self.params.names
        if list(present) != names:
            places = [[names.index(name)] for name in present]
            bad = tf.scatter_nd(places, tf.cast(bad, tf.int32), [len(names)]) > 0
        return bad

    def nonfinite_names(self) -> list[str]:
        """Return which gradients were not finite at the last skipped step."""
        return [name for name, bad in zip(self.params.names, self.nonfinite.numpy(), strict=True) if bad]

    # -- compiled calls ------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshots:
        """Return what a compiled call's Python leaves behind, hashable; empty buffers are left out."""
        return tuple([(replica, buffer.snapshot()) for replica, buffer in self._buffers.items() if not buffer.empty()])

    def restore(self, snapshots: Snapshots) -> None:
        """Restore a snapshot, after a call that may have replayed a trace."""
        full = dict(snapshots)
        for replica, buffer in self._buffers.items():
            buffer.restore(*full.get(replica, ((), False, False)))
