"""The gradients of one optimizer's window, on one replica."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from unifiedamp.backend import errors

from .tapes import current_home

if TYPE_CHECKING:
    from .prepared_optimizer import Bound


class Gradients:
    """Gradients live in a dict while one call lasts, in accumulators when a window spans several calls.

    Args:
        bound: the optimizer they are for.

    Attributes:
        present: name → gradient, where there is one.
        flags: bool vector over ``present``, set once they are unscaled (where there is a scaler).
        loss: the last unscaled loss.
        lost: gradients were made in a compiled function that has ended.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self.present: dict[str, Any] = {}
        self.flags: Any = None
        self.loss: Any = None
        self.lost = False
        self._complete = False
        self._home: Any = None
        self._seen: tuple[str, ...] = ()

    # -- filling -------------------------------------------------------------------------------------------------

    def add(self, gradients: Mapping[str, Any], loss: Any) -> None:
        """Add a backward's gradients by name; None where there is none."""
        home = current_home()
        if self.present and self._home is not home:
            self.present.clear()
            self.lost = True
        self._home, self.loss = home, loss
        if not self._seen:
            self._bound.restart()
        for name, gradient in gradients.items():
            if gradient is not None:
                self.present[name] = self._sum(name, self._bound.received(gradient))

    def take(self, pairs: Iterable[tuple[Any, Any]], loss: Any = None) -> None:
        """Take the (gradient, variable) pairs that Keras's ``fit`` made, in place of what there is.

        Raises:
            PrepareError: a variable that the optimizer was not prepared for.
        """
        self.forget()
        self._home, self.lost, self.loss = current_home(), False, loss
        for gradient, variable in pairs:
            name = self._bound.name_of(variable)
            if name is None:
                raise errors.PrepareError(
                    f"this {type(self._bound.inner).__name__} was not prepared for the variable {variable.name!r}; "
                    "give amp.prepare all models that it trains, with their layers trainable"
                )
            if gradient is not None:
                self.present[name] = self._bound.received(gradient)

    def move_here(self) -> None:
        """Have what was taken count as made in the graph that is current: a branch of the one it was made in."""
        self._home = current_home()

    def _sum(self, name: str, gradient: Any) -> Any:
        accumulators = self._bound.accumulators
        if accumulators is not None:
            if name in self._seen:
                return accumulators[name].assign_add(tf.convert_to_tensor(gradient), read_value=True)
            # A window's first gradient is set, not added: whatever an interrupted call left behind is gone.
            self._seen = tuple(known for known in self._bound.names if known in self._seen or known == name)
            return accumulators[name].assign(tf.convert_to_tensor(gradient), read_value=True)
        present = self.present.get(name)
        if present is None:
            return gradient
        return tf.convert_to_tensor(present) + tf.convert_to_tensor(gradient)

    def collect(self, call: str) -> dict[str, Any]:
        """Return the window's gradients, usable in the graph that is current.

        Raises:
            StepOrderError: they were made in another compiled function.
        """
        home, accumulators = current_home(), self._bound.accumulators
        if accumulators is not None:
            if self._home is not home:
                self.present, self._home, self.lost = {}, home, False
            # The last micro-batch may have reached fewer parameters than those before it, in another call.
            for name in self._seen:
                if name not in self.present:
                    self.present[name] = accumulators[name].read_value()
        if self.lost or (self.present and self._home is not home):
            raise errors.StepOrderError(
                f"amp.{call}: the gradients of this {type(self._bound.outer).__name__} were made in another compiled "
                "function (or outside this one); put autocast, scale_loss and step into one function for amp.compile"
            )
        return self.present

    # -- using ---------------------------------------------------------------------------------------------------

    def unscale(self, call: str, scaled: bool = True, flags: Any = None) -> None:
        """Sum over replicas, look for inf and nan on the raw gradients, then divide them by the scale; once.

        Args:
            call: what errors name.
            scaled: they are to be divided.
            flags: what was found on the raw gradients, where somebody has looked at them.
        """
        present = self.collect(call)
        if self._complete or not present:
            return
        self._complete = True
        scaler = self._bound.scaler
        values = self._bound.replicas.sum(list(present.values()))
        if scaler is not None:
            known = flags is not None and flags.shape == (len(values),)
            self.flags = flags if known else scaler.finite_flags(values)
            values = scaler.unscale(values) if scaled else values
        present.update(zip(present, values, strict=True))

    def clip_norm(self, max_norm: float) -> Any:
        """Scale the gradients so that their global 2-norm is at most ``max_norm``; return the norm before."""
        if not self.present:
            return tf.constant(0.0)
        values = [tf.convert_to_tensor(gradient) for gradient in self.present.values()]  # slices name rows twice
        norm = _global_norm(values)
        factor = tf.minimum(1.0, max_norm / tf.maximum(norm, max_norm))
        clipped = [value * tf.cast(factor, value.dtype) for value in values]
        self.present.update(zip(self.present, clipped, strict=True))
        return norm

    def clip_value(self, clip_value: float) -> None:
        """Clamp each element of the gradients to [-clip_value, clip_value]."""
        for name, gradient in self.present.items():
            self.present[name] = tf.clip_by_value(tf.convert_to_tensor(gradient), -clip_value, clip_value)

    def pairs(self) -> list[tuple[Any, Any]]:
        """Return what an optimizer applies: (gradient, variable), without those frozen since their gradient came."""
        training = self._bound.training()
        return [(gradient, self._bound.trained[name]) for name, gradient in self.present.items() if name in training]

    # -- emptying ------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Empty the window; the first gradients of the next one take the place of what accumulators hold."""
        self._seen = ()
        self.forget()
        self.lost = False

    def forget(self) -> None:
        """Drop what Python holds of the window; accumulators stay."""
        self.present = {}
        self.flags = self.loss = self._home = None
        self._complete = False

    # -- compiled calls ------------------------------------------------------------------------------------------

    def empty(self) -> bool:
        """Whether a compiled call would leave nothing behind."""
        return not (self.present or self._seen or self.lost)

    def snapshot(self) -> tuple[Any, ...]:
        """Return what a compiled call's Python leaves behind, hashable."""
        return (self._seen, self.lost or bool(self.present and self._bound.accumulators is None))

    def restore(self, seen: tuple[str, ...], lost: bool) -> None:
        """Put it back, after a call that may have replayed a trace."""
        self.forget()
        self._seen, self.lost = seen, lost


def _global_norm(values: Sequence[Any]) -> Any:
    """Return the 2-norm over all tensors, float32; finite also where float32 could not hold the squares."""

    def norm_of(largest: Any) -> Any:
        return tf.linalg.global_norm([tf.cast(value, tf.float32) / largest for value in values]) * largest

    norm = norm_of(1.0)
    largest = tf.reduce_max(tf.stack([tf.cast(tf.reduce_max(tf.abs(value)), tf.float32) for value in values]))
    return tf.cond(tf.math.is_finite(norm), lambda: norm, lambda: norm_of(largest))
