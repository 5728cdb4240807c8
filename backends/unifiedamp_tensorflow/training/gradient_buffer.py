"""The gradients of one optimizer's window, on one replica."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from unifiedamp.backend import errors

from .._types import Gradient, Graph, Pairs, Tensor, Variable
from ..device.numerics import clamped, global_norm, multiplied
from ..distributed.packing import Packed
from ..distributed.replicas import Replicas, first_copy
from ..distributed.xla_updates import takes_packed
from ..precision.tapes import current_home
from .scaler import DeviceScaler
from .trained_variables import TrainedVariables

Snapshot: TypeAlias = "tuple[tuple[str, ...], bool, bool]"
"""What a compiled call's Python leaves behind: the names that accumulators hold, whether gradients were lost, and
whether there is a condition for the window's step."""


class GradientBuffer:
    """Holds gradients in a dict while one call lasts, in accumulators when a window spans several calls.

    Args:
        params: what the optimizer trains.
        scaler: the session's, None without loss scaling.
        replicas: where the model trains.
        owner: the class name of the prepared optimizer, for messages.
        on_first: called when the first gradients of a window arrive.

    Attributes:
        present: name → gradient, where there is one.
        flags: bool vector over ``present``, set once they are unscaled (where there is a scaler).
        packed: the gradients to be applied, joined; None where they are not.
        losses: the unscaled losses, as far as they were made in this call.
        lost: gradients were made in a compiled function that has ended.
        on_reduced: called with the gradients once they are summed over replicas, before they are unscaled; None where
            nothing is to be called.
    """

    def __init__(
        self, params: TrainedVariables, scaler: DeviceScaler | None, replicas: Replicas, owner: str,
        on_first: Callable[[], None],
    ) -> None:  # fmt: skip
        self._params, self._scaler, self._replicas = params, scaler, replicas
        self._owner, self._on_first = owner, on_first
        self.present: dict[str, Gradient] = {}
        self.flags: Tensor | None = None
        self.losses: list[Tensor] = []
        self.lost = False
        self.packed: Packed | None = None
        self.on_reduced: Callable[[Mapping[str, Gradient]], None] | None = None
        self._complete = self._filled = False
        self._condition: Tensor | None = None
        self._conditional = False
        self._home: Graph | None = None
        self._seen: tuple[str, ...] = ()

    @property
    def loss(self) -> Tensor | None:
        """The last unscaled loss."""
        return self.losses[-1] if self.losses else None

    # -- filling -------------------------------------------------------------------------------------------------

    def add(self, gradients: Mapping[str, Gradient | None], loss: Tensor) -> None:
        """Add a backward's gradients by name; None where there is none."""
        home = current_home()
        if self.present and self._home is not home:
            self.present.clear()
            self.lost = True
        self.losses = [*(self.losses if self._home is home else ()), loss]
        self._home = home
        if not self._seen:
            self._on_first()
        for name, gradient in gradients.items():
            if gradient is not None:
                self.present[name] = self._sum(name, self._params.received(gradient))

    def replace(self, pairs: Pairs, loss: Tensor | None = None) -> None:
        """Hold the (gradient, variable) pairs that Keras's ``fit`` made, in place of what there is.

        Raises:
            PrepareError: a variable that the optimizer was not prepared for.
        """
        self.forget()
        self._home, self.lost = current_home(), False
        self.losses = [] if loss is None else [loss]
        for gradient, variable in pairs:
            name = self._params.name_of(variable)
            if name is None:
                raise errors.PrepareError(
                    f"this {type(self._params.optimizer).__name__} was not prepared for the variable "
                    f"{variable.name!r}; give amp.prepare all models that it trains, with their layers trainable"
                )
            if gradient is not None:
                self.present[name] = self._params.received(gradient)

    def move_here(self) -> None:
        """Count what is held as made in the current graph, which is a branch of the one it was made in."""
        self._home = current_home()

    def _sum(self, name: str, gradient: Gradient) -> Gradient:
        accumulators = self._params.accumulators
        if accumulators is not None:
            return self._accumulate(accumulators[name], name, tf.convert_to_tensor(gradient))
        present = self.present.get(name)
        if present is None:
            return gradient
        return tf.convert_to_tensor(present) + tf.convert_to_tensor(gradient)

    def _accumulate(self, accumulator: Variable, name: str, gradient: Tensor) -> Tensor:
        self._params.check_addition()
        if name in self._seen:
            return accumulator.assign_add(gradient, read_value=True)
        # A window's first gradient is set, not added: whatever an interrupted call left behind is gone.
        self._seen = tuple(known for known in self._params.names if known in self._seen or known == name)
        return accumulator.assign(gradient, read_value=True)

    def collect(self, call: str) -> dict[str, Gradient]:
        """Return the window's gradients by name, from accumulators where earlier calls put them there.

        Raises:
            StepOrderError: they were made in another compiled function.
        """
        home, accumulators = current_home(), self._params.accumulators
        if accumulators is not None:
            if self._home is not home:
                self.present, self._home, self.lost = {}, home, False
            # The last micro-batch may have reached fewer parameters than those before it, in another call.
            for name in self._seen:
                if name not in self.present:
                    self.present[name] = accumulators[name].read_value()
        if self.lost or (self.present and self._home is not home):
            raise errors.StepOrderError(
                f"amp.{call}: the gradients of this {self._owner} were made in another compiled "
                "function (or outside this one, or of its loop or branch); put autocast, scale_loss and step into one "
                "function for amp.compile, and drop steps by a value with amp.skip_if"
            )
        return self.present

    def fill_in(self, call: str) -> None:
        """Give zeros to parameters that other replicas of this process alone have gradients of; once per window.

        All replicas then sum, check and apply the same parameters; one without any decides with the others.
        """
        if self._filled or self._complete or self._replicas.count == 1:
            return
        self._filled = True
        present = self.collect(call)
        there = self._replicas.together(_of_any, ("\n".join(present),), {})
        like = self._params.accumulators or self._params.trained
        for name in set(there) - set(present):
            present[name] = self._params.received(tf.zeros(like[name].shape, like[name].dtype))
        self.present = {name: present[name] for name in self._params.names if name in present}

    # -- using ---------------------------------------------------------------------------------------------------

    def unscale(self, call: str, scaled: bool = True, flags: Tensor | None = None) -> None:
        """Sum over replicas, check the raw gradients for inf and nan, then divide them by the scale; once per window.

        Args:
            call: what errors name.
            scaled: they are to be divided.
            flags: what a check of the raw gradients found; None where there was none.
        """
        if not self._complete:
            self._drop_frozen(call)
        self.fill_in(call)
        present = self.collect(call)
        if self._complete or not present:
            return
        self._complete = True
        if self._scaler is None:
            values = self._replicas.sum(list(present.values()))
            self._note_reduced(values)
        else:
            values, checks = self._replicas.sum_of_scale(list(present.values()), self._scaler.numbers())
            self._note_reduced(values)
            known = flags is not None and flags.shape == (len(values),)
            with tf.control_dependencies(checks):
                self.flags = flags if known else self._scaler.finite_flags(values)
            values = self._scaler.unscale(values) if scaled else values
        present.update(zip(present, values, strict=True))

    def _drop_frozen(self, call: str) -> None:
        """Drop the gradients of parameters that were frozen inside the window: they count in no norm and no check."""
        present, training = self.collect(call), self._params.training()
        self.present = {name: gradient for name, gradient in present.items() if name in training}
        self._seen = tuple(name for name in self._seen if name in training)

    def _note_reduced(self, values: Sequence[Gradient]) -> None:
        if self.on_reduced is not None:
            self.on_reduced(dict(zip(self.present, values, strict=True)))

    def clip_norm(self, max_norm: float) -> Tensor:
        """Scale the gradients so that their global 2-norm is at most ``max_norm``; return the norm before."""
        if not self.present:
            return tf.constant(0.0)
        values = [tf.convert_to_tensor(gradient) for gradient in self.present.values()]  # slices name rows twice
        norm = global_norm(values)
        factor = tf.minimum(1.0, max_norm / tf.maximum(norm, max_norm))
        clipped = [multiplied(value, factor) for value in values]
        self.present.update(zip(self.present, clipped, strict=True))
        return norm

    def clip_value(self, clip_value: float) -> None:
        """Clamp each element of the gradients to [-clip_value, clip_value]; of a complex one, both its parts."""
        for name, gradient in self.present.items():
            self.present[name] = clamped(gradient, clip_value)

    def pack(self) -> None:
        """Join the gradients for the program that updates, where XLA compiles it."""
        if takes_packed(self._params.optimizer):
            self.packed = Packed(list(self.present.values()))

    def pairs(self) -> list[tuple[Gradient, Variable]]:
        """Return what an optimizer applies: (gradient, variable), without those frozen since their gradient came."""
        training, applied = self._params.training(), self._params.applied
        gradients = self.present.values() if self.packed is None else self.packed.parts()
        pairs = zip(self.present, gradients, strict=True)
        return [(gradient, applied[name]) for name, gradient in pairs if name in training]

    # -- conditions ----------------------------------------------------------------------------------------------

    def drop_if(self, condition: Tensor) -> None:
        """Drop the window's step where ``condition``, a bool scalar, holds on any replica; they all call it."""
        found = tf.greater(self._replicas.sum([tf.cast(condition, tf.float32)])[0], 0)
        before = self.condition()
        self._condition, self._conditional = found if before is None else tf.logical_or(before, found), True
        if self._params.condition is not None:
            self._params.condition.assign(self._condition)

    def condition(self) -> Tensor | None:
        """Return whether the window's step is dropped, a bool scalar; None where there is no condition."""
        if not self._conditional:
            return None
        kept = self._params.condition
        return self._condition if kept is None else first_copy(kept).read_value()

    # -- emptying ------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Drop the window; the first gradients of the next one replace what accumulators hold."""
        self._seen = ()
        self.forget()
        self.lost = self._conditional = False

    def forget(self) -> None:
        """Drop what Python holds of the window; accumulators stay."""
        self.present = {}
        self.flags = self._home = self._condition = None
        self.losses = []
        self.on_reduced = None
        self.packed = None
        self._complete = self._filled = False

    # -- compiled calls ------------------------------------------------------------------------------------------

    def empty(self) -> bool:
        """Whether a compiled call would leave nothing behind."""
        return not (self.present or self._seen or self.lost)

    def snapshot(self) -> Snapshot:
        """Return what a compiled call's Python leaves behind, hashable."""
        lost = self.lost or bool(self.present and self._params.accumulators is None)
        return (self._seen, lost, self._conditional)

    def restore(self, seen: Iterable[str], lost: bool, conditional: bool) -> None:
        """Restore a snapshot, after a call that may have replayed a trace."""
        self.forget()
        self._seen, self.lost, self._conditional = tuple(seen), lost, conditional


def _of_any(names: str | tf.distribute.DistributedValues) -> tuple[str, ...]:
    """Return the names that some replica gives, a name in each line."""
    texts = names.values if isinstance(names, tf.distribute.DistributedValues) else (names,)
    return tuple(dict.fromkeys(name for text in texts for name in text.split("\n") if name))
