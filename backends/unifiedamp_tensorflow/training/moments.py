"""Optimizers' moments between steps, in the dtype of ``Policy.state_dtype``.

They stay the optimizer's own variables, in bfloat16 or as the bytes of ``moment_rounding``. While ``update_step``
updates one parameter, float32 values stand in the place of its moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

from unifiedamp.backend import Policy, errors, state_rounding

from .. import patches
from .._types import Named, Optimizer, Tensor, Variable
from ..internals import kept_variables, native, slot_name
from . import bfloat16_rounding, moment_rounding
from .float32_value import Float32Value

_OF_ADAM = {"_momentums": "first_moment", "_velocities": "second_moment", "_velocity_hats": "max_second_moment"}
NAMES = {"Adam": _OF_ADAM, "AdamW": _OF_ADAM, "SGD": {"momentums": "velocity"}}
"""Class of ``tf.keras.optimizers`` → its attribute that lists a moment's variables → our name of the moment."""


class Moment(NamedTuple):
    """One moment of one parameter.

    Attributes:
        attribute: of the optimizer, which lists the moment's variables.
        place: in that list.
        moment: our name.
        variable: where it is kept.
        shape: the parameter's.
    """

    attribute: str
    place: int
    moment: str
    variable: Variable
    shape: tf.TensorShape

    def read(self) -> Tensor:
        """Return its numbers, float32."""
        if self.variable.dtype != tf.uint8:
            return tf.cast(self.variable, tf.float32)
        return moment_rounding.unpack(self.variable, self._squares, self.shape)

    def write(self, values: Tensor, name: str, step: Callable[[], Tensor]) -> None:
        """Set it to float32 numbers, rounded.

        Args:
            values: the numbers.
            name: of the parameter in a session's state.
            step: returns the key of the step.
        """
        key = state_rounding.moment_key(name, self.moment)
        if self.variable.dtype == tf.float32:
            kept = values
        elif self.variable.dtype == tf.uint8:
            kept = moment_rounding.pack(values, self._squares, key, step())
        else:
            kept = bfloat16_rounding.stochastic(values, key, step())
        self.variable.assign(kept, read_value=False)

    @property
    def _squares(self) -> bool:
        return state_rounding.MOMENTS[self.moment]


class Moments:
    """The moments of one optimizer.

    Args:
        optimizer: one that was built for the parameters.
        named: name → parameter, in the order in which the optimizer was built.
        saved: name → the name in a session's state.
        policy: the session's.

    Attributes:
        kept: name of a parameter → its moments.
    """

    def __init__(self, optimizer: Optimizer, named: Named, saved: Mapping[str, str], policy: Policy) -> None:
        self._optimizer, self._named, self._saved = optimizer, named, saved
        self._rounds = policy.state_dtype is not None
        known = NAMES.get(type(optimizer).__name__, {}) if is_known(optimizer) else {}
        self.kept: Mapping[str, list[Moment]] = {
            name: [
                Moment(attribute, place, moment, native(variables[place]), parameter.shape)
                for attribute, moment in known.items()
                if (variables := getattr(optimizer, attribute, None))
            ]
            for place, (name, parameter) in enumerate(named.items())
        }

    def to_float32(self) -> None:
        """Keep the same numbers in float32 variables, as the optimizer's own updates need them."""
        for name, moments in self.kept.items():
            for each in moments:
                if each.variable.dtype != tf.float32:
                    values = each.read()
                    _replace_slot(self._optimizer, each.attribute, each.place, self._named[name], values)
        self.kept = {}

    @contextmanager
    def widened(self, name: str, step: Callable[[], Tensor]) -> Iterator[None]:
        """Hold float32 values in the place of a parameter's moments inside; then round them.

        Args:
            name: of the parameter.
            step: returns the key of the step.
        """
        if not self._rounds:
            yield
            return
        shown = [(each, Float32Value(each.variable, _key(each.variable), each.read())) for each in self.kept[name]]
        with ExitStack() as stack:
            for each, value in shown:
                listed = list(getattr(self._optimizer, each.attribute))
                listed[each.place] = value
                stack.enter_context(patches.attributes(self._optimizer, **{each.attribute: listed}))
            yield
        for each, value in shown:
            each.write(value.read_value(), self._saved[name], step)


def _key(variable: Variable) -> str:
    return str(getattr(variable, "_unique_id", ""))


def is_known(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is one of Keras's own whose moments are known."""
    kind: Any = type(optimizer)
    return kind.__name__ in NAMES and getattr(tf.keras.optimizers, kind.__name__, None) is kind


def check_optimizer(optimizer: Optimizer, policy: Policy) -> None:
    """Refuse an optimizer whose moments are not known.

    Raises:
        PrepareError: it is none of Keras's own in ``NAMES``.
    """
    kind: Any = type(optimizer)
    if policy.state_dtype and not is_known(optimizer):
        raise errors.PrepareError(
            f"state_dtype={policy.state_dtype!r}: the moments of this {kind.__name__} are not known; use one of "
            f"tf.keras.optimizers' {', '.join(NAMES)}, or leave state_dtype out"
        )


def _replace_slot(optimizer: Any, attribute: str, place: int, variable: Variable, values: Any) -> None:
    """Put ``values`` in the place of a slot of ``variable``, one of the optimizer's list ``attribute``; stays."""
    slots, kept = list(getattr(optimizer, attribute)), kept_variables(optimizer)
    old, name = slots[place], slot_name(slots[place])
    at = next(index for index, each in enumerate(kept) if each is old)
    if not hasattr(old, "path"):  # Keras 2, which names slots "m/dense/kernel"
        name = f"{name}/{variable.name.partition(':')[0]}"
    slots[place] = optimizer.add_variable(
        values.shape, initializer=lambda *_args, **_options: values, dtype=values.dtype.name, name=name
    )
    kept[at] = kept.pop()
    setattr(optimizer, attribute, slots)
