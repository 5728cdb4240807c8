"""The prepared optimizer: a Keras optimizer that ``model.compile`` takes, with the session's loss scaling inside.

Keras wraps what it is given in its own ``LossScaleOptimizer`` under ``mixed_float16``, unless it is one already; so
ours is one. Keras 3 hands it scaled gradients, Keras 2 unscaled ones: two small classes, one for each Keras.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import tensorflow as tf

from unifiedamp.backend import errors

from .. import patches
from .._types import Gradient, Graph, NativeBase, Optimizer, Pairs, Tensor, Variable
from ..precision.tapes import current_home
from .prepared_optimizer import PreparedOptimizer
from .scaler import DeviceScaler
from .steps import Steps

T = TypeVar("T")
NATIVE = tf.keras.mixed_precision.LossScaleOptimizer
SCALES_LOSS = hasattr(NATIVE, "scale_loss")
"""Whether Keras calls ``scale_loss`` and then applies scaled gradients (Keras 3)."""


def is_optimizer(obj: object) -> bool:
    """Whether ``obj`` is a Keras optimizer of the current kind (not ``optimizers.legacy``)."""
    return isinstance(obj, tf.keras.optimizers.Optimizer)


def is_wrapped(obj: object) -> bool:
    """Whether ``obj`` is a loss-scaling wrapper, Keras's or ours."""
    return isinstance(obj, NATIVE)


def is_prepared(obj: object) -> bool:
    """Whether ``obj`` is the prepared optimizer of a session."""
    return hasattr(obj, "_amp_scaler")


def release(outer: Any) -> None:
    """Mark a prepared optimizer as that of a closed session."""
    outer._amp_closed = True


def released(obj: Any) -> Any:
    """Return the optimizer inside a prepared one whose session was closed; anything else unchanged."""
    return obj.inner_optimizer if getattr(obj, "_amp_closed", False) else obj


def scaled(loss: Tensor, scale: Variable, accumulate: int = 1) -> Tensor:
    """Return float32(loss) * scale / accumulate."""
    return tf.cast(loss, tf.float32) * (scale if accumulate == 1 else scale / float(accumulate))


class OfThisStep(Generic[T]):
    """A value of the step that Keras is making, kept from one of its calls to the next."""

    def __init__(self) -> None:
        self._value: T | None = None
        self._home: Graph | None = None

    def note(self, value: T) -> None:
        """Keep it until the step ends."""
        self._value, self._home = value, current_home()

    def take(self) -> T | None:
        """Return it once, in the graph where it was made; None elsewhere."""
        value, home, self._value, self._home = self._value, self._home, None, None
        return value if home is current_home() else None

    def outside(self) -> bool:
        """Whether it was made in a graph, and this is outside of it: each run of the graph makes one again."""
        return self._home is not None and self._home is not current_home()


def note_scaled(outer: Any, loss: Tensor) -> None:
    """Note that ``loss`` was scaled as the prepared optimizer's own call scales it: its gradients may come next."""
    if is_prepared(outer):
        outer._amp_loss.note(tf.cast(loss, tf.float32))


def forget_scaled(outer: Any) -> None:
    """Forget a loss that was noted, whose step has ended otherwise."""
    if is_prepared(outer):
        outer._amp_loss.take()


def scaler_of(outer: Any) -> DeviceScaler:
    """Return the loss scale that a prepared optimizer was made with."""
    scaler: DeviceScaler = outer._amp_scaler
    return scaler


def end_steps_by(outer: Any, prepared: PreparedOptimizer, steps: Steps) -> None:
    """Make a prepared optimizer's calls end its steps by ``steps``."""
    outer._amp_end = functools.partial(steps.end_keras, prepared)
    outer._amp_check = prepared.check_native_call


def unscaled_gradients(call: str) -> errors.StepOrderError:
    """Return the error for gradients of a loss that did not go through ``call`` of the prepared optimizer."""
    return errors.StepOrderError(
        "optimizer.apply_gradients: these are gradients of a loss that was not scaled, and the prepared optimizer "
        f"would give them another size: differentiate optimizer.{call}(loss), or use amp.scale_loss and amp.step"
    )


def scaled_gradients() -> errors.StepOrderError:
    """Return the error for gradients of a scaled loss that were not divided by the scale (Keras 2)."""
    return errors.StepOrderError(
        "optimizer.apply_gradients: the loss was scaled by get_scaled_loss; give its gradients to "
        "optimizer.get_unscaled_gradients before they are applied"
    )


class _ScalingLoss(NativeBase):
    """A Keras 3 optimizer under a session's loss scale.

    Args:
        inner: the optimizer that is applied.
        scaler: the session's loss scale.
    """

    def __init__(self, inner: Optimizer, scaler: DeviceScaler, accumulate: int = 1) -> None:
        settings = scaler.settings
        super().__init__(inner, initial_scale=settings.first_scale, dynamic_growth_steps=settings.growth_interval)
        self._amp_scaler, self._amp_accumulate = scaler, accumulate
        self._amp_loss, self._amp_scaled = OfThisStep[Tensor](), False

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return float32(loss) times the session's scale, divided by the micro-batches of a window."""
        self._amp_scaled = True
        note_scaled(self, loss)
        return scaled(loss, self._amp_scaler.scale, self._amp_accumulate)

    def apply(self, grads: Sequence[Gradient | None], trainable_variables: Sequence[Variable] | None = None) -> None:
        """Apply scaled gradients, or skip them."""
        self._amp_check()
        self._amp_scaled = self._amp_scaled or self._amp_loss.outside()
        loss = self._amp_loss.take()
        if loss is None and not self._amp_scaled:  # once it is set, another trace's loss cannot be told from this one's
            raise unscaled_gradients("scale_loss")
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        if not self.built:
            self.build(variables)
        self._amp_end(list(zip(grads, variables, strict=True)), True, loss, None)

    def save_own_variables(self, store: Any) -> None:
        """Save in the layout of Keras's own LossScaleOptimizer."""
        state = self._amp_scaler.read()
        self.dynamic_scale.assign(state.scale)
        self.step_counter.assign(state.good_steps)
        super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Load what Keras's own LossScaleOptimizer saved too; its scale becomes the session's."""
        super().load_own_variables(store)
        if len(store.keys()) == len(self.variables):
            self._amp_scaler.continue_from(float(self.dynamic_scale.numpy()), int(self.step_counter.numpy()))


class _UnscalingGradients(NativeBase):
    """A Keras 2 optimizer under a session's loss scale.

    Args:
        inner: the optimizer that is applied.
        scaler: the session's loss scale.
    """

    def __init__(self, inner: Optimizer, scaler: DeviceScaler, accumulate: int = 1) -> None:
        patches.forget_wrapper(inner)
        super().__init__(inner, dynamic=False, initial_scale=scaler.settings.first_scale)
        self._amp_scaler, self._amp_accumulate = scaler, accumulate
        self._amp_loss, self._amp_flags = OfThisStep[Tensor](), OfThisStep[Tensor]()
        self._amp_unscaled = OfThisStep[bool]()

    @property
    def loss_scale(self) -> Any:
        """The session's scale."""
        return self._amp_scaler.scale.read_value()

    def get_scaled_loss(self, loss: Tensor | Callable[[], Tensor]) -> Any:
        """Return float32(loss) times the session's scale, divided by the micro-batches of a window (of a callable, a
        callable).
        """
        self._loss_has_been_scaled = True
        if callable(loss):
            return lambda: scaled(loss(), self._amp_scaler.scale, self._amp_accumulate)
        note_scaled(self, loss)
        return scaled(loss, self._amp_scaler.scale, self._amp_accumulate)

    def get_unscaled_gradients(self, grads: Sequence[Gradient | None]) -> list[Gradient | None]:
        """Check for inf and nan, and return gradients divided by the scale; None stays None."""
        self._gradients_have_been_unscaled = True
        self._amp_unscaled.note(True)
        raw = [_float32(g) for g in grads if g is not None]
        if raw:
            self._amp_flags.note(self._amp_scaler.finite_flags(raw))
        present = iter(self._amp_scaler.unscale(raw))
        return [None if g is None else next(present) for g in grads]

    def apply_gradients(self, grads_and_vars: Pairs, *_args: object, **_options: object) -> None:
        """Apply unscaled gradients, or skip them."""
        self._amp_check()
        loss, unscaled = self._amp_loss.take(), self._amp_unscaled.take()
        if self._amp_accumulate > 1 and loss is None and not self._loss_has_been_scaled:
            raise unscaled_gradients("get_scaled_loss")
        never = self._loss_has_been_scaled and not self._gradients_have_been_unscaled
        if unscaled is None and (never or loss is not None):
            if loss is not None:
                self._amp_loss.note(loss)  # its gradients may be unscaled yet
            raise scaled_gradients()
        pairs = list(grads_and_vars)
        with tf.init_scope():
            self.build([variable for _, variable in pairs])
        self._amp_end(pairs, False, loss, self._amp_flags.take())

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of Keras's own LossScaleOptimizer."""
        settings = self._amp_scaler.settings
        kept = {"initial_scale": settings.first_scale, "dynamic_growth_steps": settings.growth_interval}
        return {**super().get_config(), "dynamic": True, **kept}


@functools.cache
def prepared_class(name: str = "AmpOptimizer") -> type:
    """Return the class of prepared optimizers for the installed Keras; messages call them by ``name``."""
    form, base = (_ScalingLoss, NATIVE) if SCALES_LOSS else (_UnscalingGradients, _current_kind())

    class AmpOptimizer(form, base):  # type: ignore[misc, valid-type]  # the base depends on the Keras installed
        __doc__ = form.__doc__

    AmpOptimizer.__name__ = AmpOptimizer.__qualname__ = name
    return disguised(AmpOptimizer, base)


def _float32(gradient: Gradient) -> Gradient:
    """Return a gradient in the dtype that it is divided in: float32 under master weights, else its own."""
    return tf.cast(gradient, tf.float32) if gradient.dtype in (tf.float16, tf.bfloat16) else gradient


def _current_kind() -> type:
    return type(NATIVE(tf.keras.optimizers.SGD()))


def disguised(kind: type, shown: type) -> type:
    """Return a subclass that serialization sees as ``shown``, so that a saved model loads without unifiedamp."""
    return patches.subclass(kind, shown, {})
