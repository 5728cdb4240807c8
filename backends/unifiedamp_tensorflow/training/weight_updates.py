"""Updates of bfloat16 variables without float32 master weights, and of moments that are kept in fewer bits:
``Policy.update`` and ``Policy.state_dtype``.

Keras optimizers update one variable at a time, in ``update_step``. Each gets a float32 value in place of a bfloat16
variable, which is rounded back as soon as it is updated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from unifiedamp.backend import Policy, errors, rounding

from .. import patches
from .._types import Gradient, Named, Optimizer, Tensor, Variable
from ..distributed.replicas import first_copy, replica_counter
from ..internals import decays, own_method
from . import bfloat16_rounding
from .float32_value import Float32Value
from .moment_rounding import packed_size
from .moments import Moments

APPLY = "apply" if hasattr(tf.keras.optimizers.Optimizer, "apply") else "apply_gradients"
"""The method of a Keras optimizer that all its updates go through (Keras 3, Keras 2)."""

DECAY = "_apply_weight_decay"
"""Keras's method that decays all variables before they are updated."""


class WeightUpdates:
    """The rounded updates of one optimizer.

    Args:
        optimizer: a Keras optimizer that has no variables yet; it is built here, with slots in float32 or
            the policy's ``state_dtype``.
        named: name → the model's parameter.
        known: name → the same as Keras knows it.
        saved: name → the name in a session's state, of which random numbers are made too.
        policy: the session's.

    Attributes:
        optimizer, saved: see the arguments.
        rounded: name → parameter, of those whose updates are rounded.
        rests: name → its compensation, a bfloat16 variable; none but under ``update="kahan"``.
        moments: what the optimizer keeps between steps.
        count: int64 variable: how many updates were rounded.
    """

    def __init__(
        self, optimizer: Optimizer, named: Named, known: Named, saved: Mapping[str, str], policy: Policy
    ) -> None:
        self.optimizer, self.saved, self._policy = optimizer, saved, policy
        low = {name: variable for name, variable in named.items() if variable.dtype == tf.bfloat16}
        self.rounded: Named = low if policy.update else {}
        kept = self.rounded if policy.update == "kahan" else {}
        self.rests: Named = {name: _rest(variable) for name, variable in kept.items()}
        self.count = replica_counter("rounded_updates")
        self._key = replica_counter("update_key")
        self._rounding = self._takes_values = False
        _build(optimizer, list(known.values()), policy.state_dtype or "float32")
        self.moments = Moments(optimizer, named, saved, policy)
        # Keras 2's own loop finds a constraint at the tf.Variable; Keras 3's does not, and gets these.
        unknown = {name: variable for name, variable in known.items() if variable is not named[name]}
        self._constraints = {name: v.constraint for name, v in unknown.items() if v.constraint is not None}
        self._names = {optimizer._var_key(variable): name for name, variable in named.items()}

    def refuse_native(self) -> Callable[[], None]:
        """Refuse updates that the session does not round; return what ends that, and makes moments float32."""
        native = getattr(self.optimizer, APPLY)

        @functools.wraps(native)
        def apply(*args: Any, **options: Any) -> Any:
            if self._rounding:
                return native(*args, **options)
            what = (
                f"update={self._policy.update!r} the session rounds the update to the parameters"
                if self._policy.update
                else f"state_dtype={self._policy.state_dtype!r} the session keeps the moments"
            )
            raise errors.StepOrderError(
                f"{type(self.optimizer).__name__}.{APPLY}: under {what}; call amp.step(optimizer), or give fit and "
                "loops the optimizer that amp.prepare returned"
            )

        restore = patches.override(self.optimizer, **{APPLY: apply})

        def end() -> None:
            restore()
            self.moments.to_float32()

        return end

    @contextmanager
    def rounding(self) -> Iterator[None]:
        """Round what the optimizer updates inside; once for all replicas.

        Raises:
            UnsupportedError: it did not update the float32 values.
        """
        count = first_copy(self.count).read_value()
        self._key.assign(tf.cast(self.next_step(), tf.int64))
        update = self.optimizer.update_step
        replaced: dict[str, Any] = {"update_step": self._rounded(update), DECAY: lambda _variables: None}
        self._rounding = True
        try:
            with patches.attributes(self.optimizer, **replaced):
                yield
        finally:
            self._rounding = False
        self.count.assign(count + 1)
        if self.rounded and not self._takes_values:
            raise errors.UnsupportedError(
                f"update: {type(self.optimizer).__name__} did not update the float32 values that its update_step was "
                "given, so its updates cannot be rounded; use an optimizer that assigns to the variable it is given, "
                "or master_weights=True instead of update"
            )

    def _rounded(self, update: Callable[..., Any]) -> Callable[..., None]:
        """Return what takes the place of ``update_step``: (gradient, variable), of Keras 3 also the learning rate."""

        def update_step(gradient: Gradient, variable: Variable, *rest: Any) -> None:
            name = self._names.get(self.optimizer._var_key(variable))
            if name is not None and self._policy.state_dtype and isinstance(gradient, tf.IndexedSlices):
                raise errors.UnsupportedError(
                    f"state_dtype: the gradient of {name} is sparse (tf.IndexedSlices), and moments are rounded whole; "
                    "train the embedding with another optimizer and session, or leave state_dtype out"
                )
            with nullcontext() if name is None else self.moments.widened(name, self._step):
                if name not in self.rounded:
                    self._decay(variable)
                    update(gradient, variable, *rest)
                    if name in self._constraints:
                        variable.assign(self._constraints[name](variable), read_value=False)
                    return
                before = self.true(name, variable)
                value: Any = Float32Value(variable, self.optimizer._var_key(variable), before)
                self._decay(value)
                update(tf.cast(tf.convert_to_tensor(gradient), tf.float32), value, *rest)
                self._takes_values = self._takes_values or value.read_value() is not before
                self.set(name, variable, self._constrained(name, value.read_value()), self._step)

        return update_step

    def _constrained(self, name: str, values: Tensor) -> Tensor:
        constraint = self._constraints.get(name)
        return values if constraint is None else constraint(values)

    def _step(self) -> Tensor:
        return tf.cast(first_copy(self._key).read_value(), tf.uint32)

    def next_step(self) -> Tensor:
        """Return the key of the step that comes next, uint32."""
        return bfloat16_rounding.step_key(self._policy.update_seed, first_copy(self.count).read_value())

    def _decay(self, variable: Any) -> None:
        """Decay the weights as Keras does, by ``weight_decay * learning_rate`` of them."""
        decay = getattr(self.optimizer, "weight_decay", None)
        if decay is not None and decays(self.optimizer, variable):
            factor = tf.cast(decay, tf.float32) * tf.cast(self.optimizer.learning_rate, tf.float32)
            variable.assign_sub(variable * tf.cast(factor, variable.dtype))

    def saved_variables(self) -> dict[str, Variable]:
        """Return name → variable of what a checkpoint needs beside the optimizer."""
        rests = {f"compensation_{index}": rest for index, rest in enumerate(self.rests.values())}
        return {"rounded_updates": self.count, **rests}

    # -- weights -------------------------------------------------------------------------------------------------

    def true(self, name: str, variable: Variable) -> Tensor:
        """Return the true weights of a parameter, or of one replica's copy of it, float32."""
        if name not in self.rests:
            return tf.cast(variable, tf.float32)
        return bfloat16_rounding.joined(variable, self.rests[name])

    def set(self, name: str, variable: Variable, values: Tensor, step: Callable[[], Tensor] | None = None) -> None:
        """Set a parameter to float32 values.

        Args:
            name: of the parameter.
            variable: it, or one replica's copy.
            values: to be rounded.
            step: returns the key of the step, where the update is to be rounded stochastically; None rounds to the
                nearest.
        """
        if name in self.rests:
            weight, rest = bfloat16_rounding.kahan_split(values)
            self.rests[name].assign(rest, read_value=False)
        elif step is None:
            weight = tf.cast(values, tf.bfloat16)
        else:
            weight = bfloat16_rounding.stochastic(values, rounding.param_key(self.saved[name]), step())
        variable.assign(weight, read_value=False)


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose updates cannot be rounded.

    Raises:
        PrepareError: it averages weights, accumulates gradients, or overrides weight decay.
    """
    name, instead = type(optimizer).__name__, ""
    if getattr(optimizer, "use_ema", False):
        instead = "use_ema=True, whose averages would be of bfloat16 values; use amp.ema"
    elif getattr(optimizer, "gradient_accumulation_steps", None):
        instead = (
            "gradient_accumulation_steps, so that not each of its steps updates weights; use Amp(accumulate_steps=...)"
        )
    elif own_method(optimizer, DECAY):
        instead = f"an overridden {DECAY}, which would decay bfloat16 values; decay in update_step"
    if instead:
        raise errors.PrepareError(f"update and state_dtype: this {name} has {instead}")


def _rest(variable: Variable) -> Variable:
    name = f"{variable.name.partition(':')[0]}_compensation"
    zeros = tf.zeros(variable.shape, tf.bfloat16)
    return tf.Variable(zeros, trainable=False, name=name, aggregation=variable.aggregation)


def _build(optimizer: Any, variables: Sequence[Variable], slots: str) -> None:
    """Build an optimizer with variables of dtype ``slots`` for each parameter; bytes for "float8"."""
    native = optimizer.add_variable

    def kept(shape: Any) -> dict[str, Any]:
        if slots != "float8":
            return {"dtype": slots}
        return {"shape": (packed_size(math.prod(shape)),), "dtype": "uint8", "initializer": "zeros"}

    def add_variable(*args: Any, **options: Any) -> Any:
        """Keras 3's form, which all its variables go through."""
        floats = options.get("dtype") is not None and tf.as_dtype(options["dtype"]) in (tf.bfloat16, tf.float32)
        return native(*args, **(options | kept(options["shape"]) if floats else options))

    def add_variable_from_reference(
        model_variable: Variable, variable_name: str, shape: Any = None, initial_value: Any = None
    ) -> Any:
        """Keras 2's form, of variables that look like float32 ones."""
        form = {"shape": model_variable.shape if shape is None else shape}
        form |= kept(form["shape"])
        dtype = tf.as_dtype(form.pop("dtype"))
        value = tf.zeros(form["shape"], dtype) if initial_value is None else tf.cast(initial_value, dtype)
        name = f"{variable_name}/{model_variable.name.partition(':')[0]}"
        return native(**form | {"initializer": lambda *_args, **_options: value}, dtype=dtype, name=name)

    if APPLY == "apply":
        with patches.attributes(optimizer, add_variable=add_variable):
            optimizer.build(variables)
    else:
        shown = [
            Float32Value(each, optimizer._var_key(each)) if each.dtype == tf.bfloat16 else each for each in variables
        ]
        with patches.attributes(optimizer, add_variable_from_reference=add_variable_from_reference):
            optimizer.build(shown)
