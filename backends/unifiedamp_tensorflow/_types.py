"""The parts of TensorFlow and Keras that this backend uses, as types: neither ships annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    NativeBase: TypeAlias = Any
    """The base of a mixin for a class of TensorFlow's or Keras's, whose attributes it uses."""
else:
    NativeBase = object


class DType(Protocol):
    """``tf.DType``."""

    name: str
    size: int
    is_floating: bool
    is_integer: bool
    is_complex: bool


class Tensor(Protocol):
    """``tf.Tensor``, eager or of a graph."""

    @property
    def dtype(self) -> DType:
        """The element type."""

    @property
    def shape(self) -> Any:
        """A ``tf.TensorShape``."""

    def numpy(self) -> Any:
        """Return the values; eager only."""

    def set_shape(self, shape: Any) -> None:
        """Have a graph know the shape."""

    def __int__(self) -> int: ...
    def __float__(self) -> float: ...

    def __add__(self, other: object) -> Tensor: ...
    def __sub__(self, other: object) -> Tensor: ...
    def __rsub__(self, other: object) -> Tensor: ...
    def __mul__(self, other: object) -> Tensor: ...
    def __truediv__(self, other: object) -> Tensor: ...
    def __ge__(self, other: object) -> Tensor: ...
    def __gt__(self, other: object) -> Tensor: ...
    def __invert__(self) -> Tensor: ...
    def __neg__(self) -> Tensor: ...
    def __getitem__(self, index: object) -> Tensor: ...


class Variable(Tensor, Protocol):
    """``tf.Variable``, mirrored ones included."""

    name: str
    trainable: bool
    device: str
    handle: Tensor
    aggregation: Any
    constraint: Callable[[Any], Any] | None

    def read_value(self) -> Tensor:
        """Read the value at this point of the program."""

    def value(self) -> Tensor:
        """Return the value."""

    def assign(self, value: object, read_value: bool = True) -> Tensor:
        """Set the value."""

    def assign_add(self, delta: object, read_value: bool = True) -> Tensor:
        """Add to the value."""

    def assign_sub(self, delta: object, read_value: bool = True) -> Tensor:
        """Subtract from the value."""


class IndexedSlices(Protocol):
    """``tf.IndexedSlices``: the gradient of a gather."""

    values: Tensor
    indices: Tensor
    dense_shape: Tensor
    dtype: DType

    @property
    def shape(self) -> Any:
        """A ``tf.TensorShape``."""


Gradient: TypeAlias = "Tensor | IndexedSlices"
Named: TypeAlias = "dict[str, Variable]"
"""Parameter name → variable."""
Pairs: TypeAlias = "Iterable[tuple[Gradient | None, Variable]]"
"""What Keras optimizers apply: (gradient, variable)."""


class DTypePolicy(Protocol):
    """A Keras dtype policy."""

    name: str
    compute_dtype: str
    variable_dtype: str


class Layer(Protocol):
    """``keras.layers.Layer``; models are layers."""

    name: str
    built: bool
    trainable: bool
    dtype_policy: DTypePolicy
    compute_dtype: str
    variable_dtype: str
    weights: list[Variable]
    variables: list[Variable]
    trainable_weights: list[Variable]
    trainable_variables: list[Variable]

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def get_config(self) -> dict[str, Any]:
        """Return what the layer is made of."""

    def _flatten_layers(self, include_self: bool, recursive: bool = True) -> Iterable[Layer]: ...


class Model(Layer, Protocol):
    """``keras.Model``."""

    input: Any
    output: Any
    optimizer: Any
    train_step: Callable[..., Any]
    train_function: Callable[..., Any] | None


class Sequential(Model, Protocol):
    """``keras.Sequential``."""

    layers: list[Layer]


class Optimizer(Protocol):
    """``keras.optimizers.Optimizer``."""

    iterations: Variable
    learning_rate: Any
    update_step: Callable[..., Any]
    weight_decay: float | None
    variables: Any
    _index_dict: dict[str, int]

    def build(self, variables: Sequence[Variable]) -> None:
        """Make the slots."""

    def apply_gradients(self, grads_and_vars: Pairs, **options: Any) -> Any:
        """Update the variables."""

    def add_variable(self, *, shape: Any, dtype: str, initializer: str, name: str) -> Variable:
        """Make a variable that is saved with the optimizer."""

    def _var_key(self, variable: Variable) -> str: ...
    def _use_weight_decay(self, variable: Variable) -> bool: ...


class BatchNorm(Layer, Protocol):
    """``keras.layers.BatchNormalization``."""

    momentum: float


class Dense(Layer, Protocol):
    """``keras.layers.Dense`` or ``EinsumDense``."""

    equation: str
    kernel: Variable
    bias: Variable | None
    activation: Callable[[Tensor], Tensor] | None


class Strategy(Protocol):
    """``tf.distribute.Strategy``."""

    num_replicas_in_sync: int
    extended: Any
    cluster_resolver: Any

    def scope(self) -> Any:
        """Return the context that variables are made in."""

    def run(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Run a function on each replica."""


class Graph(Protocol):
    """``tf.Graph``."""

    def get_operations(self) -> list[Any]:
        """Return the operations in the order of their making."""


class Node(Protocol):
    """A ``NodeDef`` of a graph."""

    op: str
    attr: Any
