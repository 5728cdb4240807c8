"""Every change made to TensorFlow's and Keras's own objects, and how it is undone.

=============================  ==========================================  ==========================================
what                           made by                                     undone by
=============================  ==========================================  ==========================================
AutoGraph's rules              :func:`exempt_from_autograph`, at import    never: they name this package only
a layer's class                :func:`set_class`                           :func:`set_class` to ``original_class``
a layer's dtype policy         :func:`set_dtype_policy`                    :class:`PolicyChanges`
attributes of one object       :func:`attributes`                          leaving the context
variables of an optimizer      :func:`track`                               never: they are part of its state
a number of an optimizer       :func:`set_number`                          never: another object counts it from there on
the mark of a wrapper          :func:`forget_wrapper`                      never: wrapping the optimizer sets it again
gradient sums of Keras 3       :func:`gradients_summed_already`            leaving the context
methods of one object          :func:`override`                            the function that it returns
``model.train_function``       :func:`forget_train_function`               never: Keras makes it again
``model.fit`` and ``compile``  :func:`override_training`                   the function that it returns
Keras's global dtype policy    :func:`write_global_policy`                 writing what :func:`read_global_policy` gave
Keras's call context           :func:`call_context`                        leaving the context
the graph rewrite              :class:`GraphRewrite`                       leaving the context
TF32                           :data:`TF32`                                leaving the context
Keras's image layout           :func:`image_layout`                        leaving the context
``tf.function``                :func:`run_functions_eagerly`               calling it with False
calls of every such function   :func:`after_functions`                     the function that it returns
functions of products          :func:`write_functions`                     writing what was there
=============================  ==========================================  ==========================================
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import config

from unifiedamp.backend import Switch

from ._types import Layer, Model, Optimizer, Variable
from .internals import set_dtype_policy

try:
    from keras.src.backend.common import global_state
except ImportError:  # Keras 2
    global_state = None
    from keras.src.engine.base_layer_utils import call_context as keras2_call_context
    from keras.src.mixed_precision import policy as keras2

# -- AutoGraph ---------------------------------------------------------------------------------------------------------


def exempt_from_autograph() -> None:
    """Keep AutoGraph from rewriting unifiedamp's own Python, which decides while tracing."""
    rules = [config.DoNotConvert(name) for name in ("unifiedamp", __name__.partition(".")[0])]
    config.CONVERSION_RULES = (*rules, *config.CONVERSION_RULES)


# -- classes -----------------------------------------------------------------------------------------------------------


def set_class(obj: object, kind: type) -> None:
    """Give an object another class of the same layout."""
    # Our subclasses show the original as __class__, so the assignment must go below that property.
    vars(object)["__class__"].__set__(obj, kind)


def subclass(original: type, shown: type, members: Mapping[str, Any]) -> type:
    """Return a subclass that looks like ``shown``, so that saving and cloning see that class."""
    body = {
        "__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__,
        "__class__": property(lambda _: shown), "__reduce_ex__": _reduce,
    }  # fmt: skip
    return type(original)(original.__name__, (original,), {**body, **members})


def _reduce(obj: Any, protocol: int) -> Any:
    """Pickle an object as one of the class that it shows; pickle finds no other by name."""
    kind = type(obj)
    set_class(obj, obj.__class__)
    try:
        return obj.__reduce_ex__(protocol)
    finally:
        set_class(obj, kind)


# -- attributes --------------------------------------------------------------------------------------------------------


@contextmanager
def attributes(obj: object, **values: Any) -> Iterator[None]:
    """Set attributes of one object inside, past its ``__setattr__``."""
    held = vars(obj)
    found = {name: held[name] for name in values if name in held}
    held.update(values)
    try:
        yield
    finally:
        for name in values:
            del held[name]
        held.update(found)


def track(optimizer: Optimizer, name: str, variables: Sequence[Variable]) -> None:
    """Keep variables as an attribute of an optimizer, where Keras's checkpoints find them; stays."""
    setattr(optimizer, name, list(variables))


def set_number(optimizer: Optimizer, name: str, value: object) -> None:
    """Have ``value`` count in place of a Python number of an optimizer; stays."""
    setattr(optimizer, name, value)


def forget_wrapper(optimizer: Optimizer) -> None:
    """Remove Keras 2's mark of an optimizer inside a loss-scale wrapper: a loaded model's wrapper is left behind."""
    vars(optimizer).pop("_is_wrapped_by_loss_scale_optimizer", None)


SUMMING = "_all_reduce_sum_gradients"
"""Keras 3's method that sums gradients over replicas; Keras 2 takes an argument instead."""


@contextmanager
def gradients_summed_already(optimizer: Optimizer) -> Iterator[dict[str, bool]]:
    """Keep an optimizer from summing gradients over replicas inside; yield the options of ``apply_gradients``."""
    if not hasattr(optimizer, SUMMING):
        yield {"skip_gradients_aggregation": True}
        return
    with attributes(optimizer, **{SUMMING: list}):
        yield {}


def override_training(model: Model, **methods: Callable[..., Any]) -> Callable[[], None]:
    """Replace methods of a model's own training loop; return the function that puts them back."""
    held = vars(model)
    found = {name: held[name] for name in methods if name in held}
    held.update(methods)

    def restore() -> None:
        for name in methods:
            held.pop(name, None)
        held.update(found)
        model.train_function = None

    return restore


def override(obj: object, **methods: Callable[..., Any]) -> Callable[[], None]:
    """Replace methods of one object, past its ``__setattr__``; return the function that puts them back."""
    context = attributes(obj, **methods)
    context.__enter__()
    return lambda: (context.__exit__(None, None, None), None)[1]


def forget_train_function(model: Model) -> None:
    """Make a model trace its training step anew at the next ``fit``."""
    if hasattr(model, "train_function"):
        model.train_function = None


# -- dtype policies ----------------------------------------------------------------------------------------------------


class PolicyChanges:
    """Dtype policies of layers, changed until :meth:`undo`."""

    def __init__(self) -> None:
        self._found: list[tuple[Layer, Any]] = []

    def set(self, layer: Layer, policy: Any) -> None:
        """Set a layer's dtype policy."""
        self._found.append((layer, layer.dtype_policy))
        set_dtype_policy(layer, policy)

    def undo(self) -> None:
        """Put back the policies that were found."""
        while self._found:
            set_dtype_policy(*self._found.pop())


GLOBAL_POLICY_PER_THREAD = global_state is not None
"""Whether Keras keeps a global dtype policy for each thread (Keras 3); Keras 2 has one for the process."""
POLICY_LOCK = threading.RLock()
"""Held, under Keras 2, by the thread that has set the global policy."""
_POLICY = "dtype_policy"


def read_global_policy() -> Any:
    """Return Keras's global dtype policy; None where none was set, and Keras goes by ``floatx``."""
    return keras2._global_policy if global_state is None else global_state.get_global_attribute(_POLICY)


def write_global_policy(policy: Any) -> None:
    """Set Keras's global dtype policy; None for none."""
    if global_state is None:
        keras2.set_global_policy(policy)
    else:
        global_state.set_global_attribute(_POLICY, policy)


# -- Keras's call context ----------------------------------------------------------------------------------------------

_CONTEXT = "current_call_ctx"


def read_call_context() -> tuple[Any, Any]:
    """Return the context of the present call of a layer, and its ``training`` argument."""
    if global_state is None:
        return None, keras2_call_context().training
    context = global_state.get_global_attribute(_CONTEXT)
    return context, getattr(context, "training", None)


def call_context(context: Any, training: Any) -> AbstractContextManager[Any]:
    """Return a context in which layers are called as :func:`read_call_context` found it."""
    if global_state is None:
        present = keras2_call_context()
        state = present._state
        return present.enter(state["layer"], state["inputs"], state["build_graph"], training, state["saving"])
    return nullcontext() if context is None else _keras3_call_context(context, training)


@contextmanager
def _keras3_call_context(context: Any, training: Any) -> Iterator[None]:
    found, before = global_state.get_global_attribute(_CONTEXT), context.training
    context.training = training
    global_state.set_global_attribute(_CONTEXT, context)
    try:
        yield
    finally:
        context.training = before
        global_state.set_global_attribute(_CONTEXT, found)


# -- the process -------------------------------------------------------------------------------------------------------


class GraphRewrite:
    """Turns TensorFlow's graph rewrite on, with its lists of operations.

    Args:
        option: the optimizer option that turns it on; None to set the lists only.
        lists: environment variable → operations to add.
    """

    def __init__(self, option: str | None, lists: Mapping[str, str]) -> None:
        self._option, self._lists = option, lists
        self._found: list[tuple[Any, dict[str, str | None]]] = []

    def __enter__(self) -> None:
        present = {name: os.environ.get(name) for name in self._lists}
        state = None
        if self._option is not None:
            state = tf.config.optimizer.get_experimental_options().get(self._option)
            tf.config.optimizer.set_experimental_options({self._option: True})
        for name, nodes in self._lists.items():
            os.environ[name] = f"{present[name]},{nodes}" if present[name] else nodes
        self._found.append((state, present))

    def __exit__(self, *exception: object) -> None:
        state, present = self._found.pop()
        if self._option is not None:
            tf.config.optimizer.set_experimental_options({self._option: state})
        for name, value in present.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def rewrite_options_on(options: Sequence[str]) -> list[str]:
    """Return which of the rewrite's options are on in this process."""
    present = tf.config.optimizer.get_experimental_options()
    return [option for option in options if present.get(option)]


TF32 = Switch(
    tf.config.experimental.tensor_float_32_execution_enabled,
    tf.config.experimental.enable_tensor_float_32_execution,
    True,
)
"""Turns TF32 on; nestable, and shared by threads."""


@contextmanager
def image_layout(layout: str | None) -> Iterator[None]:
    """Set Keras's image layout inside; None leaves it."""
    if layout is None:
        yield
        return
    before = tf.keras.backend.image_data_format()
    tf.keras.backend.set_image_data_format(layout)
    try:
        yield
    finally:
        tf.keras.backend.set_image_data_format(before)


def write_functions(functions: Mapping[tuple[Any, str], Callable[..., Any]]) -> None:
    """Set functions of modules: (module, name) → function."""
    for (module, name), function in functions.items():
        setattr(module, name, function)


def run_functions_eagerly(enabled: bool) -> None:
    """Have every ``tf.function`` of the process run as Python: ``unifiedamp record`` sees the values in it."""
    tf.config.run_functions_eagerly(enabled)


def after_functions(then: Callable[[], None]) -> Callable[[], None]:
    """Call ``then`` after each eager call of a ``tf.function`` or of a concrete function.

    Returns:
        A function that undoes it; idempotent.
    """
    _after_functions.append(then)
    if len(_after_functions) == 1:
        function = tf.function(lambda: tf.constant(0))
        for kind in (type(function), type(function.get_concrete_function())):
            _unpatched[kind] = kind.__call__
            kind.__call__ = _notifying(kind.__call__)

    def undo() -> None:
        if then in _after_functions:
            _after_functions.remove(then)
        if not _after_functions:
            while _unpatched:
                kind, original = _unpatched.popitem()
                kind.__call__ = original

    return undo


_after_functions: list[Callable[[], None]] = []
_unpatched: dict[Any, Callable[..., Any]] = {}
"""Class of functions → its ``__call__``."""


def _notifying(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        if tf.executing_eagerly():
            for then in list(_after_functions):
                then()
        return output

    return call
