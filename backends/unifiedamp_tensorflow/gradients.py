"""One prepared optimizer, its parameters, and the gradients of its window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from unifiedamp.backend import NonFiniteReport, errors

from .scaler import DeviceScaler, finite_flags
from .tapes import current_home


class Bound:
    """Gradients live in a dict while one call lasts, in accumulators when a window spans several calls.

    Args:
        outer: the optimizer that users hold.
        inner: the optimizer that is applied.
        names, variables: its parameters, as ``tf.Variable``.
        accumulate: whether a window has several micro-batches.
        scaler: the session's, None without loss scaling.

    Attributes:
        gradients: name → gradient of the window, where there is one.
        flags: bool vector over ``gradients``, set once they are unscaled.
        loss: the last unscaled loss.
        lost: gradients were made in a compiled function that has ended.
        bad: bool variable over ``names``: what was not finite at the last skipped step of a compiled function.
    """

    def __init__(
        self, outer: Any, inner: Any, names: Sequence[str], variables: Sequence[Any], accumulate: bool,
        scaler: DeviceScaler | None,
    ) -> None:  # fmt: skip
        self.outer, self.inner = outer, inner
        self.names, self.variables = list(names), list(variables)
        self.scaler = scaler
        self.gradients: dict[str, Any] = {}
        self.flags: Any = None
        self.loss: Any = None
        self.lost = False
        self._by_name = dict(zip(self.names, self.variables, strict=True))
        self._home: Any = None
        self._accumulators = self._make_accumulators() if accumulate else None
        self._seen: tuple[str, ...] = ()
        self.bad = tf.Variable([False] * len(self.names), trainable=False, name="unifiedamp/not_finite")
        self.steps_before = int(inner.iterations.numpy())

    def _make_accumulators(self) -> dict[str, Any]:
        return {
            name: tf.Variable(tf.zeros_like(variable), trainable=False, name="unifiedamp/accumulator")
            for name, variable in self._by_name.items()
        }

    # -- filling -------------------------------------------------------------------------------------------------

    def add(self, gradients: Sequence[Any], loss: Any) -> None:
        """Add a backward's gradients, in the order of ``variables``; None where there is none."""
        home = current_home()
        if self.gradients and self._home is not home:
            self.gradients.clear()
            self.lost = True
        self._home, self.loss = home, loss
        for name, gradient in zip(self.names, gradients, strict=True):
            if gradient is not None:
                self.gradients[name] = self._sum(name, gradient)

    def _sum(self, name: str, gradient: Any) -> Any:
        if self._accumulators is not None:
            if name not in self._seen:
                self._seen = tuple(known for known in self.names if known in self._seen or known == name)
            return self._accumulators[name].assign_add(tf.convert_to_tensor(gradient), read_value=True)
        present = self.gradients.get(name)
        if present is None:
            return gradient
        return tf.convert_to_tensor(present) + tf.convert_to_tensor(gradient)

    def collect(self, call: str) -> dict[str, Any]:
        """Return the window's gradients, usable in the graph that is current.

        Raises:
            StepOrderError: they were made in another compiled function.
        """
        home = current_home()
        if self._accumulators is not None and self._home is not home:
            self.gradients = {name: self._accumulators[name].read_value() for name in self._seen}
            self._home, self.lost = home, False
        if self.lost or (self.gradients and self._home is not home):
            raise errors.StepOrderError(
                f"amp.{call}: the gradients of this {type(self.outer).__name__} were made in another compiled "
                "function (or outside this one); put autocast, scale_loss and step into one function for amp.compile"
            )
        return self.gradients

    # -- emptying ------------------------------------------------------------------------------------------------

    def unscale(self, call: str) -> None:
        """Look for inf and nan on the raw gradients, then divide them by the scale; once."""
        gradients = self.collect(call)
        if self.scaler is None or not gradients or self.flags is not None:
            return
        self.flags = finite_flags(list(gradients.values()))
        gradients.update(zip(gradients, self.scaler.unscale(list(gradients.values())), strict=True))

    def clear(self) -> None:
        """Empty the window."""
        if self._accumulators is not None:
            for name in self._seen:
                self._accumulators[name].assign(tf.zeros_like(self._accumulators[name]))
            self._seen = ()
        self.forget()
        self.lost = False

    def forget(self) -> None:
        """Drop what Python holds of the window; accumulators stay."""
        self.gradients = {}
        self.flags = self.loss = self._home = None

    def apply(self) -> None:
        """Let the optimizer apply the gradients that there are."""
        pairs = [(gradient, self._by_name[name]) for name, gradient in self.gradients.items()]
        self.inner.apply_gradients(pairs)

    # -- reports -------------------------------------------------------------------------------------------------

    def note_bad(self) -> None:
        """Keep on the device which gradients were not finite (in the skip branch of a trace)."""
        flags = tf.logical_not(self.flags)
        if list(self.gradients) == self.names:
            self.bad.assign(flags)
            return
        places = [[self.names.index(name)] for name in self.gradients]
        self.bad.assign(tf.scatter_nd(places, tf.cast(flags, tf.int32), [len(self.names)]) > 0)

    def report(self, loss_finite: bool | None) -> NonFiniteReport:
        """Return what was noted at the last skipped step."""
        bad = self.bad.numpy()
        return NonFiniteReport(tuple(name for name, yes in zip(self.names, bad, strict=True) if yes), loss_finite)

    # -- compiled calls ------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, ...]:
        """Return what a compiled call's Python leaves behind, hashable."""
        return (self._seen, self.lost or bool(self.gradients and self._accumulators is None))

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Put it back, after a call that may have replayed a trace."""
        self.forget()
        self._seen, self.lost = snapshot
