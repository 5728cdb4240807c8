"""The update of a step over replicas, where XLA compiles: one program on each device, in place of several operations
for each variable.

A branch of ``tf.cond`` begins when the host knows the decision, and until then it gives the devices nothing to do. An
optimizer that only updates each variable needs no branch: its programs run in each step, update the loss scale and the
counters too, and where the step is skipped they keep what a skipped step leaves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from .. import patches
from .._types import Gradient, Optimizer, Strategy, Tensor, Variable
from ..internals import decays, own_method
from ..internals import native as native_variable
from .packing import Packed
from .replica_programs import compiled_by_xla, needs_host

UPDATE = "_distributed_tf_update_step"
"""Keras 3's method that updates variables on all replicas: strategy, (gradient, variable) pairs, learning rate."""
DECAY = "_apply_weight_decay"
"""Keras's method that decays all variables before they are updated."""
METHODS = ("apply", "apply_gradients", "update_step", "_backend_apply_gradients", "_backend_update_step", DECAY, UPDATE)
"""What an applied step runs of a Keras 3 optimizer."""
SETTINGS = (
    "clipnorm", "clipvalue", "global_clipnorm", "gradient_accumulation_steps", "loss_scale_factor", "use_ema",
)  # fmt: skip
"""With one of these, an applied step of a Keras 3 optimizer does more than to decay and update each variable."""

VARIABLE_SETTINGS = ("constraint", "overwrite_with_gradient")
"""The same of a variable."""


def takes_packed(optimizer: Optimizer) -> bool:
    """Whether programs of this trace update the variables of an optimizer, which joined gradients cost less."""
    return compiled_by_xla() and hasattr(optimizer, UPDATE)


@contextmanager
def updates_by_xla(optimizer: Optimizer, packs: Sequence[Packed]) -> Iterator[None]:
    """Have XLA compile the updates of a Keras 3 optimizer inside, where it compiles the replicas' programs.

    Sparse gradients, and an ``update_step`` that asks the host, are left to TensorFlow.

    Args:
        optimizer: a Keras optimizer.
        packs: in which gradients may be joined.
    """
    if not takes_packed(optimizer):
        yield
        return
    with patches.attributes(optimizer, **{UPDATE: _update_by_xla(optimizer, getattr(optimizer, UPDATE), packs)}):
        yield


def _update_by_xla(optimizer: Optimizer, native: Callable[..., None], packs: Sequence[Packed]) -> Callable[..., None]:
    def update(strategy: Strategy, pairs: Sequence[tuple[Gradient, Variable]], learning_rate: Tensor) -> None:
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if any(_is_sparse(gradient) for gradient in gradients):
            native(strategy, pairs, learning_rate)
            return
        on_device = _OnDevice(optimizer, variables, packs).update
        strategy.extended.update(variables[0], on_device, args=(learning_rate, *gradients), group=False)

    return update


def updates_alone(optimizer: Optimizer, variables: Sequence[Variable]) -> bool:
    """Whether an applied step does no more to variables than to decay and update each, by methods of Keras 3."""
    if any(getattr(variable, name, None) for variable in variables for name in VARIABLE_SETTINGS):
        return False
    native: type = tf.keras.optimizers.Optimizer
    if not hasattr(native, UPDATE) or any(own_method(optimizer, name) for name in METHODS):
        return False
    if not vars(optimizer).keys().isdisjoint(METHODS):  # one object's own
        return False
    if any(getattr(type(optimizer), name) is not getattr(native, name) for name in METHODS if name != "update_step"):
        return False
    return not any(getattr(optimizer, name, None) for name in SETTINGS)


def update_where(
    strategy: Strategy, optimizer: Optimizer, applied: Tensor, pairs: Callable[[], Any], packs: Sequence[Packed],
    count: Callable[[], None],
) -> None:  # fmt: skip
    """Apply the step of an optimizer that :func:`updates_alone` where ``applied``, a bool scalar, holds.

    Args:
        strategy: between whose replicas this is called.
        optimizer: a Keras 3 optimizer.
        applied: see above; nothing waits for it.
        pairs: returns the (gradient, variable) pairs of the calling replica.
        packs: in which gradients may be joined.
        count: called in the program of each device: what else a step does.
    """

    def on_replica() -> None:
        found = pairs()
        variables = [native_variable(variable) for _, variable in found]
        tf.distribute.get_replica_context().merge_call(
            functools.partial(on_devices, variables), [gradient for gradient, _ in found]
        )

    def on_devices(variables: Sequence[Variable], strategy: Strategy, *gradients: Gradient) -> None:
        on_device = functools.partial(_OnDevice(optimizer, variables, packs).update_where, count)
        args = (applied, optimizer.learning_rate, *gradients)
        strategy.extended.update(variables[0], on_device, args=args, group=False)

    strategy.extended.call_for_each_replica(on_replica)


class _OnDevice:
    """The update of some variables on one device, in the context of ``strategy.extended.update``.

    There TensorFlow takes a mirrored variable for its copy on this device.
    """

    def __init__(self, optimizer: Optimizer, variables: Sequence[Variable], packs: Sequence[Packed]) -> None:
        self._optimizer, self._variables, self._packs = optimizer, variables, packs

    def update(self, _first: Variable, rate: Any, *gradients: Tensor) -> None:
        """Update the variables."""
        given, update = self._prepared(gradients, rate, decay=False)
        program = tf.function(update, autograph=False, jit_compile=True)
        if any(map(needs_host, program.get_concrete_function(*given).graph.get_operations())):
            update(*given)
        else:
            program(*given)

    def update_where(
        self, count: Callable[[], None], _first: Variable, applied: Tensor, rate: Any, *gradients: Tensor
    ) -> None:
        """Decay and update the variables, and count the iteration, where ``applied`` holds; call ``count``."""
        given, update = self._prepared(gradients, rate, decay=True)
        graph: Any = tf.function(update, autograph=False).get_concrete_function(*given).graph
        changed = self._changed(graph)

        def update_where(applied: Tensor, *tensors: Tensor) -> None:
            before = [variable.read_value() for variable in changed]
            update(*tensors)
            for variable, value in zip(changed, before, strict=True):
                variable.assign(tf.where(applied, variable.read_value(), value), read_value=False)
            iterations = native_variable(self._optimizer.iterations)
            iterations.assign_add(tf.cast(applied, iterations.dtype), read_value=False)
            count()

        by_xla = not any(map(needs_host, graph.get_operations()))
        tf.function(update_where, autograph=False, jit_compile=by_xla or None)(applied, *given)

    def _prepared(self, gradients: Sequence[Tensor], rate: Any, decay: bool) -> tuple[Any, Callable[..., None]]:
        """Return what a program gets for the gradients, and its body."""
        packed = next((each for each in self._packs if each.holds(gradients)), None)

        def update(*tensors: Tensor) -> None:
            parts = tensors if packed is None else packed.like(gradients, tensors)
            for gradient, variable in zip(parts, self._variables, strict=True):
                if decay and self._optimizer.weight_decay and decays(self._optimizer, variable):
                    share = tf.cast(self._optimizer.weight_decay, variable.dtype) * tf.cast(rate, variable.dtype)
                    variable.assign_sub(variable * share)
                self._optimizer.update_step(gradient, variable, rate)

        return (gradients if packed is None else packed.tensors), update

    def _changed(self, graph: Any) -> list[Variable]:
        """Return the variables that operations of a trace assign to."""
        assigned = {id(tensor) for op in graph.get_operations() if not op.type.startswith("ReadVariable")
                    for tensor in op.inputs if tensor.dtype == tf.resource}  # fmt: skip
        handles = {id(outer) for outer, inner in graph.captures if id(inner) in assigned}
        known = [*self._variables, *map(native_variable, self._optimizer.variables)]
        return [variable for variable in known if id(variable.handle) in handles]


def _is_sparse(gradient: Any) -> bool:
    parts = gradient.values if isinstance(gradient, tf.distribute.DistributedValues) else (gradient,)
    return any(isinstance(part, tf.IndexedSlices) for part in parts)
