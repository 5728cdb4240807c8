"""The parts of MXNet's objects that this backend uses; MXNet itself has no type hints.

Attributes whose names begin with an underscore are MXNet's own: it has no public way to what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import numpy.typing as npt

HostArray = npt.NDArray[Any]
"""A numpy array."""

Undo = Callable[[], None]
"""Takes a change back."""

Attributes = MutableMapping[str, Any]
"""The attributes of an object by name (``vars(obj)``), or of an operator."""


class Context(Protocol):
    """A device: ``mx.cpu(0)``, ``mx.gpu(1)``."""

    device_type: str
    device_id: int

    def __enter__(self) -> Context: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Symbol(Protocol):
    """A node of a graph while a block is traced."""

    name: str

    def attr(self, key: str) -> str | None: ...

    def tojson(self, remove_amp_cast: bool = True) -> str: ...

    def __iter__(self) -> Iterator[Symbol]: ...

    def __len__(self) -> int: ...


class Array(Protocol):
    """An ``NDArray`` or an ``mx.np.ndarray``; ``device`` is MXNet 2's name for its context."""

    handle: Any
    shape: tuple[int, ...]
    size: int
    dtype: Any
    stype: str
    device: Context
    _fresh_grad: bool

    @property
    def data(self, ctx: Context | None = None) -> Array: ...

    def wait_to_read(self) -> None: ...

    def asnumpy(self) -> HostArray: ...

    def as_nd_ndarray(self) -> Array: ...

    def as_np_ndarray(self) -> Array: ...

    def copy(self) -> Array: ...

    def detach(self) -> Array: ...

    def tostype(self, stype: str) -> Array: ...

    def copyto(self, other: Context) -> Array: ...

    def reshape(self, shape: tuple[int, ...]) -> Array: ...

    def clip(self, low: float, high: float) -> Array: ...

    def max(self) -> Array: ...

    def sum(self) -> Array: ...

    def backward(self) -> None: ...

    def _sync_copyfrom(self, source: HostArray) -> None: ...

    def __setitem__(self, key: slice, value: Array) -> None: ...

    def __abs__(self) -> Array: ...

    def __add__(self, other: Array | float) -> Array: ...

    def __sub__(self, other: Array | float) -> Array: ...

    def __mul__(self, other: Array | float) -> Array: ...

    def __truediv__(self, other: Array | float) -> Array: ...

    def __pow__(self, other: float) -> Array: ...

    def __iadd__(self, other: Array | float) -> Self: ...

    def __imul__(self, other: Array | float) -> Self: ...

    def __itruediv__(self, other: Array | float) -> Self: ...


class Parameter(Protocol):
    """A ``gluon.Parameter``; it has one array, and one gradient, on each context."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    grad_req: str
    _grad_req: str
    _grad_stype: str
    _differentiable: bool
    _data: Sequence[Array] | None
    _grad: Sequence[Array] | None
    _var: Symbol | None
    _deferred_init: tuple[Any, ...]

    lr_mult: float

    def data(self, ctx: Context | None = None) -> Array: ...

    def list_data(self) -> list[Array]: ...

    def var(self) -> Symbol: ...

    def set_data(self, data: Array) -> None: ...

    def cast(self, dtype: object) -> None: ...

    def _finish_deferred_init(self) -> None: ...

    def _load_init(self, data: Array, ctx: Sequence[Context]) -> None: ...


class Block(Protocol):
    """A ``gluon.Block``. Attributes that only hybrid blocks have are in their ``vars``."""

    _children: Mapping[str, Any]
    _reg_params: Mapping[str, Parameter]

    def __call__(self, *inputs: Any) -> Any: ...

    def collect_params(self) -> Mapping[str, Parameter]: ...

    def _collect_params_with_prefix(self) -> Mapping[str, Parameter]: ...

    def register_forward_pre_hook(self, hook: Callable[[Block, Any], None]) -> Any: ...

    def register_forward_hook(self, hook: Callable[[Block, Any, Any], None]) -> Any: ...


class HybridBlock(Block, Protocol):
    """A ``gluon.HybridBlock``: one that can be traced."""

    _active: bool
    _cached_graph: tuple[Any, ...]
    _cached_op: Any
    _cached_op_args: Sequence[tuple[bool, int]]

    def forward(self, *inputs: Any) -> Any: ...

    def hybridize(self, active: bool, **flags: Any) -> None: ...

    def _clear_cached_op(self) -> None: ...

    def _build_cache(self, *inputs: Any) -> None: ...

    def _deferred_infer_shape(self, *inputs: Any) -> None: ...

    def _get_graph(self, *inputs: Any) -> tuple[Sequence[Symbol], Symbol]: ...


class Optimizer(Protocol):
    """An ``mx.optimizer.Optimizer``."""

    aggregate_num: int
    multi_precision: bool
    num_update: int
    rescale_grad: float

    def create_state_multi_precision(self, index: int, weight: Array) -> Any: ...


class Updater(Protocol):
    """Runs an optimizer on one context, and keeps its states there."""

    optimizer: Optimizer
    aggregate_updates: bool
    states: dict[int, Any]
    states_synced: dict[int, bool]

    def __call__(self, indices: Sequence[int], gradients: Sequence[Array], weights: Sequence[Array]) -> None: ...

    def sync_state_context(self, state: Any, context: Context) -> Any: ...


class Trainer(Protocol):
    """A ``gluon.Trainer``."""

    optimizer: Optimizer
    _optimizer: Optimizer
    _params: Sequence[Parameter]
    _updaters: Sequence[Updater]
    _scale: float
    _kvstore: Any
    _kvstore_params: dict[str, Any]
    _kv_initialized: bool
    _params_to_init: Sequence[Parameter]
    _compression_params: Mapping[str, Any] | None
    _contains_sparse_weight: bool
    _contains_sparse_grad: bool
    _update_on_kvstore: bool | None

    def step(self, batch_size: int) -> None: ...

    def _init_kvstore(self) -> None: ...

    def _init_params(self) -> None: ...

    def _allreduce_grads(self) -> None: ...
