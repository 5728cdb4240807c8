"""Session training (``tf.compat.v1``) through TensorFlow's graph rewrite, under this layer's loss scale.

    with v1.SessionRewrite("mixed_float16", loss_scale=DynamicLossScale()) as rewrite:
        train = rewrite.prepare(tf.compat.v1.train.AdamOptimizer()).minimize(loss)
        with tf.compat.v1.Session(config=rewrite.session_config()) as session:
            session.run(train)
            rewrite.read_state(session).scale

float16 goes through ``enable_mixed_precision_graph_rewrite``; bfloat16 on CPU through oneDNN's pass.
"""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from unifiedamp.backend import LossScale, Policy, ScaleState, errors

from .._types import NativeBase
from ..device.numerics import finite_flags
from ..device.selection import select_device
from ..precision.global_policy import refuse_mixed_policy
from ..precision.rewrite_options import option_for
from .scale_transition import after_finite, after_nonfinite

REWRITE = "auto_mixed_precision"


def _native() -> Any:
    """Return ``tf.compat.v1.mixed_precision``.

    Raises:
        UnsupportedError: this TensorFlow has no such module.
    """
    module = getattr(tf.compat.v1, "mixed_precision", None)
    if not hasattr(module, "enable_mixed_precision_graph_rewrite"):
        raise errors.UnsupportedError(
            f"TensorFlow {tf.__version__} has no tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite; "
            "train by Amp('tensorflow') with mode='graph_rewrite' instead"
        )
    return module


class Session(Protocol):
    """``tf.compat.v1.Session``."""

    def run(self, fetches: Any) -> Any:
        """Run operations."""


class _Transition(NativeBase):
    """The reference transition as the loss-scale object that v1 optimizers take.

    Args:
        settings: an enabled loss scale.
    """

    def __init__(self, settings: LossScale) -> None:
        super().__init__(initial_loss_scale=settings.first_scale, increment_period=settings.growth_interval)
        self._settings = settings
        counters = [0] * (4 if settings.keeps_hysteresis else 3)
        self._counters = self._add_weight("unifiedamp_counters", counters, tf.int64)

    def update(self, grads: Any) -> tuple[Any, Any]:
        """Return the operation that updates the scale, and whether to apply the gradients."""
        gradients = [gradient for gradient in tf.nest.flatten(grads, expand_composites=False) if gradient is not None]
        finite = tf.reduce_all(finite_flags(gradients))
        scale, counters = self._current_loss_scale.read_value(), self._counters.read_value()
        spent = counters[3] if self._settings.keeps_hysteresis else None
        bad = after_nonfinite(self._settings, scale, counters[0], spent)
        good = after_finite(self._settings, scale, self._num_good_steps.read_value(), spent)
        passed, none = tf.cast(finite, tf.int64), tf.zeros_like(good.run)
        kept = [] if spent is None else [tf.where(finite, good.spent, bad.spent)]
        updates = (
            self._current_loss_scale.assign(tf.where(finite, good.scale, bad.scale)),
            self._num_good_steps.assign(tf.where(finite, good.run, none)),
            self._counters.assign(
                [tf.where(finite, none, bad.run), counters[1] + passed, counters[2] + 1 - passed, *kept]
            ),
        )
        return tf.group(*updates), finite

    def read(self, session: Session) -> ScaleState:
        """Return the state as plain numbers."""
        scale, good, rest = session.run([self._current_loss_scale, self._num_good_steps, self._counters])
        bad, applied, skipped, *spent = map(int, rest)
        return ScaleState(float(scale), int(good), bad, applied, skipped, *spent)


def _scale_class() -> type:
    base: Any = _native().DynamicLossScale

    class SessionLossScale(_Transition, base):
        __doc__ = _Transition.__doc__

    return SessionLossScale


class SessionRewrite:
    """A context in which sessions rewrite their graphs; TensorFlow's global option is restored on exit.

    Args:
        policy: "mixed_float16" (GPU) or "mixed_bfloat16" (CPU), or a ``Policy`` without overrides.
        loss_scale: a ``LossScale``; None takes the policy's.

    Raises:
        PolicyNotSupportedError: the rewrite cannot run the policy here (``force=True`` skips the check).
        UnsupportedError: this TensorFlow has no graph rewrite for v1 sessions.
    """

    def __init__(self, policy: str | Policy, loss_scale: LossScale | None = None, *, force: bool = False) -> None:
        self._native = _native()
        self._policy = Policy.parse(policy) if isinstance(policy, str) else policy
        self._option = REWRITE if force else option_for(self._policy, select_device(None))
        self._settings = loss_scale or self._policy.resolved_loss_scale
        self._scale: Any = None
        self._found: Any = None

    def __enter__(self) -> SessionRewrite:
        self._found = tf.config.optimizer.get_experimental_options().get(REWRITE)
        return self

    def __exit__(self, *exception: object) -> None:
        self._native.disable_mixed_precision_graph_rewrite()
        tf.config.optimizer.set_experimental_options({REWRITE: self._found})

    def prepare(self, optimizer: Any) -> Any:
        """Return the v1 optimizer wrapped by TensorFlow's own loss-scale optimizer, with our scale; once per context.

        Raises:
            WrongObjectError: it is no ``tf.compat.v1.train.Optimizer``.
            PrepareError: a Keras mixed policy is active, or an optimizer was prepared before.
        """
        if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
            raise errors.WrongObjectError(
                f"SessionRewrite.prepare takes a tf.compat.v1.train.Optimizer, got {type(optimizer).__name__}; "
                "Keras optimizers go to amp.prepare"
            )
        if self._scale is not None:
            raise errors.PrepareError("SessionRewrite.prepare: one optimizer per context; open another for the next")
        refuse_mixed_policy()
        if self._settings.enabled:
            self._scale = _scale_class()(self._settings)
        if self._option != REWRITE:
            if self._scale is None:
                return optimizer
            return self._native.MixedPrecisionLossScaleOptimizer(optimizer, self._scale)
        return self._native.enable_mixed_precision_graph_rewrite(optimizer, self._scale or 1.0)

    def session_config(self) -> Any:
        """Return a ``ConfigProto`` whose sessions rewrite their graphs."""
        config = tf.compat.v1.ConfigProto()
        if self._option is not None:
            on = config.graph_options.rewrite_options.ON
            setattr(config.graph_options.rewrite_options, self._option, on)
        return config

    def read_state(self, session: Session) -> ScaleState:
        """Return the scale and its counters as plain numbers."""
        return ScaleState() if self._scale is None else self._scale.read(session)
