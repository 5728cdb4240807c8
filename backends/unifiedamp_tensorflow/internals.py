"""The private names of TensorFlow and Keras that are read, each in one function: Keras 3's, else Keras 2's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.compiler.jit.ops import xla_ops
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.debug.lib import check_numerics_callback
from tensorflow.python.ops import (
    control_flow_ops,
    control_flow_util,
    gen_array_ops,
    gen_linalg_ops,
    gen_math_ops,
    gen_nn_ops,
)  # fmt: skip
from tensorflow.python.profiler import profiler_v2

from ._types import Dense, Graph, Layer, Model, Named, Optimizer, Strategy, Tensor, Variable

try:
    from tensorflow.python.eager import context as _eager
except ImportError:  # without it converted graphs cannot be read, and nothing else is lost
    _eager = None


def shared_values() -> Any:
    """Return what holds the values that processes of a strategy share (its methods end in ``config_key_value``)."""
    return None if _eager is None else _eager.context()


# -- layers ------------------------------------------------------------------------------------------------------------


def children(layer: Layer) -> Iterator[Layer]:
    """Yield the layers directly inside a layer."""
    yield from layer._flatten_layers(include_self=False, recursive=False)


def descendants(layer: Layer) -> Iterator[Layer]:
    """Yield all layers inside a layer."""
    yield from layer._flatten_layers(include_self=False)


def tracked(layer: Layer) -> list[int]:
    """Return what changes whenever a layer is assigned to an attribute of a layer, or added to a list there."""
    if not hasattr(layer, "_set_dtype_policy"):
        layers: Sequence[Layer] = getattr(layer, "_layers", ())
        return [id(each) for each in layers]
    found: Sequence[Any] = getattr(layer, "_self_tracked_trackables", ())
    return [*map(id, found), *[len(each) for each in found if isinstance(each, Sized)]]


def native(variable: Any) -> Variable:
    """Return the ``tf.Variable`` of a Keras variable."""
    value = getattr(variable, "_value", None)
    return value if isinstance(value, tf.Variable) else variable


def set_dtype_policy(layer: Layer, policy: Any) -> None:
    """Set a layer's dtype policy; Keras 2 has no public way."""
    if hasattr(layer, "_set_dtype_policy"):
        layer._set_dtype_policy(policy)
    else:
        layer.dtype_policy = policy


def casts_itself(layer: Layer) -> bool:
    """Whether variables can be cast on reading: always in Keras 3, in Keras 2 if made under a mixed policy."""
    if not hasattr(layer, "_set_dtype_policy"):
        return True
    return all(hasattr(weight, "true_dtype") for weight in layer.trainable_weights)


def caches_dtype(kind: type) -> bool:
    """Whether layers of this class read their compute dtype from private names too (Keras 2)."""
    return not hasattr(kind, "dtype_policy") or hasattr(kind, "_set_dtype_policy")


def kernel(layer: Dense) -> Variable:
    """Return the kernel of a dense layer as it is stored; Keras 2's casts itself when it is read."""
    return stored(product_kernel(layer))


def product_kernel(layer: Layer | Dense) -> Variable:
    """Return the kernel of a dense or convolutional layer; Keras 2 names a depthwise one otherwise."""
    found = (getattr(layer, name, None) for name in ("_kernel", "depthwise_kernel", "kernel"))
    return next(variable for variable in found if variable is not None)


def stored(variable: Any) -> Variable:
    """Return the variable that holds the values of one that casts itself when it is read."""
    return getattr(variable, "_variable", variable)


def query_kernel(attention: Layer) -> Variable | None:
    """Return the kernel of a MultiHeadAttention's query projection; None before it is built."""
    return getattr(getattr(attention, "_query_dense", None), "kernel", None)


def is_graph_network(model: Model) -> bool:
    """Whether Keras 2 made the model from a graph of layers."""
    return bool(getattr(model, "_is_graph_network", False))


def seed_generators(layer: Layer) -> Sequence[Any]:
    """Return the generators of a Keras 3 layer's random numbers."""
    return tuple(getattr(layer, "_seed_generators", ()))


def has_random_generator(layer: Layer) -> bool:
    """Whether a layer holds a generator of random numbers."""
    return "_random_generator" in vars(layer)


def steps_per_execution(model: Model) -> int:
    """Return how many steps a call of the model's train function runs."""
    steps = getattr(model, "_steps_per_execution", None)
    if isinstance(steps, tf.Variable):  # Keras 2
        return int(steps.numpy())
    return int(getattr(model, "steps_per_execution", 1) or 1)


def uses_xla(model: Model) -> bool:
    """Whether Keras compiles a model's training step by XLA."""
    eager = getattr(model, "run_eagerly", False)
    return bool(getattr(model, "jit_compile", getattr(model, "_jit_compile", False))) and not eager


EPOCH_LOGS = ("_get_metrics_result_or_logs", "_validate_and_get_metrics_result")
"""The method that makes an epoch's logs of its last step's: Keras 3's, Keras 2's."""


def epoch_logs_method(model: Model) -> str | None:
    """Return the name of the method that makes an epoch's logs; None where there is none."""
    return next((name for name in EPOCH_LOGS if callable(getattr(model, name, None))), None)


SINGLE_STEPS = {"steps_per_execution": 1, "_steps_per_execution": None}
"""Attributes of a model whose train function is to run one step, for Keras 3 and Keras 2."""

# -- optimizers --------------------------------------------------------------------------------------------------------


def is_built(optimizer: Optimizer) -> bool:
    """Whether the optimizer knows its variables."""
    return bool(getattr(optimizer, "built", hasattr(optimizer, "_index_dict")))


def trained_variables(optimizer: Optimizer) -> list[Variable] | None:
    """Return the variables that a built optimizer trains; None where it does not keep them (Keras 2)."""
    found = getattr(optimizer, "_trainable_variables", None)
    return None if found is None else list(found)


def built_for(optimizer: Optimizer, named: Named) -> tuple[list[Variable], list[str]]:
    """Return those of ``named`` that a built optimizer trains, and the names of its further variables.

    Keras 3 keeps the variables, so that all are in the first list; Keras 2 keeps their keys.
    """
    known = trained_variables(optimizer)
    if known is not None:
        return known, []
    keys = dict(optimizer._index_dict)
    found = [variable for variable in named.values() if keys.pop(optimizer._var_key(variable), None) is not None]
    return found, list(keys)


def long_name(variable: Variable) -> str:
    """Return the name from which optimizers make those of states: Keras 3's path, or TensorFlow's name."""
    value = native(variable)
    return str(getattr(variable, "path", None) or getattr(value, "_shared_name", value.name))


def kept_variables(optimizer: Any) -> list[Variable]:
    """Return the list in which an optimizer keeps all its variables, itself."""
    return optimizer._variables


def slot_name(slot: Variable) -> str:
    """Return the name that an optimizer's method of adding variables takes for the like of a slot.

    Keras 3 takes "dense_kernel_momentum", and Keras 2 "m", to which it adds the variable's name.
    """
    own = long_name(slot).partition(":")[0]
    return own.rpartition("/")[2] if hasattr(slot, "path") else own.partition("/")[0]


def decays(optimizer: Optimizer, variable: Variable) -> bool:
    """Whether an optimizer's weight decay is for a variable too."""
    return bool(optimizer._use_weight_decay(variable))


def exclude_alike(optimizer: Optimizer, variable: Variable, other: Variable) -> None:
    """Exclude a variable from an optimizer's weight decay where another one was excluded by itself."""
    own: Any = optimizer
    excluded: Any = getattr(own, "_exclude_from_weight_decay", ())
    if own._var_key(variable) in excluded:
        own._exclude_from_weight_decay = type(excluded)([*excluded, own._var_key(other)])


def constrain(variable: Any, constraint: Callable[[Any], Any] | None) -> None:
    """Have optimizers apply a constraint after each update of a variable, on each replica."""
    if hasattr(variable, "path"):
        variable.constraint = constraint
        return
    for copy in variable.values if isinstance(variable, tf.distribute.DistributedValues) else (variable,):
        copy._constraint = constraint


def own_method(optimizer: Optimizer, name: str) -> bool:
    """Whether a method is neither Keras's nor missing."""
    found = getattr(type(optimizer), name, None)
    return found is not None and found.__module__.partition(".")[0] not in ("keras", "tf_keras", "tensorflow")


def optimizer_strategy(optimizer: Optimizer, otherwise: Strategy | None) -> Strategy | None:
    """Return the strategy that an optimizer was made under, which Keras 2 keeps."""
    return getattr(optimizer, "_distribution_strategy", otherwise)


# -- operations --------------------------------------------------------------------------------------------------------

PRODUCTS = (
    (gen_math_ops, "mat_mul"), (gen_math_ops, "batch_mat_mul_v2"), (gen_math_ops, "batch_mat_mul_v3"),
    (gen_linalg_ops, "einsum"), (gen_nn_ops, "conv2d"), (gen_nn_ops, "conv2d_backprop_input"), (gen_nn_ops, "conv3d"),
    (gen_nn_ops, "conv3d_backprop_input_v2"), (gen_nn_ops, "depthwise_conv2d_native"),
)  # fmt: skip
"""Where the functions are by which TensorFlow multiplies matrices and convolves: (module, name)."""
BIASES = ((gen_nn_ops, "bias_add"), (gen_math_ops, "add_v2"))
"""Those that may add a bias to a product."""
RESHAPES = ((gen_array_ops, "reshape"), (gen_array_ops, "squeeze"), (gen_array_ops, "transpose"))
"""Those that may stand between the two."""


COMPUTE_ATTENTION = "_compute_attention"
"""Keras's method of layers of attention that multiplies queries, keys and values; it is written to be overridden."""


def uses_cudnn(layer: Layer) -> bool:
    """Whether a recurrent layer may run in one kernel of cuDNN's, which Keras 2 decides by itself."""
    return getattr(layer, "use_cudnn", "auto") is not False


# -- modes and graphs --------------------------------------------------------------------------------------------------


def under_xla(graph: Graph) -> bool:
    """Whether XLA will compile the graph, or one around it."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


XlaContext: Any = control_flow_ops.XLAControlFlowContext
"""The base of what a graph tells of each of its operations, as it is made."""

PROGRAM = "_xla_compile_id"
"""The attribute by which TensorFlow knows which operations XLA compiles into one program."""


def context_of(graph: Graph) -> Any:
    """Return what a graph tells of each of its operations; None without."""
    found: Any = graph
    return found._get_control_flow_context()


def set_context(owner: Any, context: Any) -> None:
    """Have a graph, or an operation, belong to a context."""
    owner._set_control_flow_context(context)


def assign_to_program(operation: Any, name: str) -> None:
    """Make an operation part of the program of this name."""
    operation._set_attr(PROGRAM, attr_value_pb2.AttrValue(s=name.encode()))


def leave_program(operation: Any) -> None:
    """Make an operation part of no program."""
    operation._clear_attr(PROGRAM)


def calls_deeply(operation: Any) -> bool:
    """Whether an operation calls a function with variables that calls others: TensorFlow's placer sets it apart."""
    if "PartitionedCall" not in operation.type or all(tensor.dtype != tf.resource for tensor in operation.inputs):
        return False
    body = operation.graph._get_function(operation.get_attr("f").name).cached_definition.node_def
    return any(value.HasField("func") for node in body for value in node.attr.values())


@contextmanager
def unwrapped_control_flow(graph: Graph) -> Iterator[None]:
    """Have loops and branches made inside be operations of the graph, not of functions that it calls."""
    named: Any = graph
    name = named.name
    named.name = f"{name}_cflow_gradient_wrapper"
    try:
        yield
    finally:
        named.name = name


def set_device(operation: Any, device: str) -> None:
    """Place an operation that has been made."""
    operation._set_device(device)


def replace_input(operation: Any, index: int, tensor: Tensor) -> None:
    """Have an operation that has been made read another tensor."""
    operation._update_input(index, tensor)


def program_output(tensor: Tensor) -> Tensor:
    """Return a tensor of a program for use outside it."""
    return xla_ops.xla_cluster_output(tensor)


def collect_graphs() -> AbstractContextManager[list[Any]] | None:
    """Return a context that yields the optimized graphs of functions first called in it; None where there is none."""
    return _eager.collect_graphs(optimized=True) if hasattr(_eager, "collect_graphs") else None


def checks_numerics() -> bool:
    """Whether ``tf.debugging.enable_check_numerics`` is on."""
    return hasattr(check_numerics_callback._state, "check_numerics_callback")


def is_profiling() -> bool:
    """Whether TensorFlow's profiler runs."""
    return profiler_v2._profiler is not None


def debugs_data() -> bool:
    """Whether datasets run in Python."""
    from tensorflow.python.data.ops import debug_mode

    return bool(debug_mode.DEBUG_MODE)
