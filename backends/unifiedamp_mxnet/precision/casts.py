"""One table of rules per policy, and the casts that it makes before an operator."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from unifiedamp.backend import Policy, errors

from .._types import Array, Symbol
from ..mxnet_api import CODES, cast, copy, create_native, dtype_code, map_tensors, mx, op_handle
from ..mxnet_api import Symbol as NativeSymbol
from .emulation import Emulation, rounded_floats
from .float8_scales import LayerScales
from .operations import (
    COMPUTE,
    COPIED,
    FIRST_INPUT_ONLY,
    FLOAT32,
    KEEP,
    REFUSED,
    WIDEST,
    ByAttribute,
    Rule,
    build_rules,
    refuse_loss_output,
)

_FIRST_ONLY = frozenset(map(op_handle, FIRST_INPUT_ONLY))
_LOW_CODES = (CODES["float16"], CODES["bfloat16"])
_F32 = CODES["float32"]


class ThreadState(threading.local):
    """The state of autocast on a thread.

    Attributes:
        table: the rules of the innermost region; None runs operators as they are.
        inferring: an inference region is open, so regions inside it record no gradients.
        stack: the open regions, each with what it restores when it is left.
    """

    table: CastTable | None = None
    inferring = False

    def __init__(self) -> None:
        self.stack: list[Any] = []


current = ThreadState()
"""This thread's."""


class CastTable:
    """The rules of one policy in one session; also the key of the graphs traced under them.

    Args:
        policy: whose compute dtype, operator overrides and output dtype are followed.
        scaled: losses are scaled, so operators whose gradient does not begin with that of a loss are refused.
        multicast: graphs may hold ``amp_multicast``; without it, they cast to float32 in place of the widest dtype.

    Attributes:
        layers: id of a block → the table that replaces this one inside it.
        float8_layers: id of a block → its delayed scales.
        outputs: ids of the prepared models, whose outputs are cast to the policy's output dtype.
        optimize_layout: graphs are built with MXNet 2's layout pass.
        warn: tells the user of what a graph cannot do.
        emulation: runs the operators that the policy emulates; None without.
    """

    def __init__(self, policy: Policy, scaled: bool = False, multicast: bool = True) -> None:
        self.policy = policy
        self.scaled = scaled
        self.multicast = multicast
        self.dtype = policy.region_dtype
        self.emulation = Emulation(policy) if policy.emulate and self.dtype != "float32" else None
        self.rules, self.default = build_rules(policy, scaled)
        self.optimize_layout = False
        self.warn: Callable[[str, type[errors.AmpWarning]], None] = warnings.warn
        self.layers: dict[int, CastTable] = {}
        self.float8_layers: dict[int, LayerScales] = {}
        self.outputs: set[int] = set()

    @property
    def casts(self) -> bool:
        """Whether anything is ever cast under this table."""
        return bool(self.rules or self.layers) or self.policy.output_dtype != "float32"

    def rule(self, handle: int, keys: Iterable[str], values: Iterable[object]) -> str:
        """Return the rule for one call of an operator."""
        rule: Rule = self.rules.get(handle, self.default)
        if type(rule) is ByAttribute:
            attributes = dict(zip(keys, values, strict=True))
            return rule.choose(attributes.get(rule.attribute))
        return rule  # type: ignore[return-value]  # by type(), which is faster here than isinstance()

    @property
    def in_float32(self) -> bool:
        """Whether arrays that no operator casts are float32: those of other dtypes are not mixed with them."""
        return self.dtype == "float32" or (self.emulation is not None and self.emulation.in_float32)

    def cast_inputs(self, value: object) -> Any:
        """Cast the inputs of a block that computes under this table, in nested lists."""
        if self.emulation is not None and self.emulation.in_float32:
            return map_tensors(self.emulation.operand, value)
        return cast_floats(value, self.dtype)

    def cast_outputs(self, value: object) -> Any:
        """Cast the outputs of a prepared model, in nested lists."""
        if self.policy.emulate and self.policy.output_dtype == "bfloat16":
            return rounded_floats(value)
        return cast_floats(value, self.policy.output_dtype)

    def cast_arrays(self, handle: int, rule: str, arrays: list[Array]) -> list[Array]:
        """Return an operator's inputs, cast by its rule; dtypes that a policy cannot name stay."""
        if rule == REFUSED:
            refuse_loss_output()
        target = self._target(rule, arrays)
        if target is None:
            return arrays
        if rule == COPIED:
            arrays = [arrays[0], *map(copy, arrays[1:])]
        fits = (_F32,) if target != "float32" else _LOW_CODES
        if handle in _FIRST_ONLY:
            return [cast(a, target) if i == 0 and dtype_code(a) in fits else a for i, a in enumerate(arrays)]
        return [cast(a, target) if dtype_code(a) in fits else a for a in arrays]

    def _target(self, rule: str, arrays: list[Array]) -> str | None:
        if rule in (COMPUTE, COPIED):
            return self.dtype
        if rule == FLOAT32:
            return "float32"
        if rule == WIDEST and len(arrays) > 1 and any(dtype_code(a) == _F32 for a in arrays):
            return "float32"
        return None

    def cast_symbols(self, handle: int, rule: str, symbols: list[Symbol]) -> list[Symbol]:
        """Return an operator's symbolic inputs, cast by its rule: dtypes are not known yet while tracing."""
        if rule == REFUSED:
            refuse_loss_output()
        if rule == WIDEST and len(symbols) < 2:
            return symbols
        if rule == WIDEST and self.multicast:
            return _multicast(symbols)
        if rule == KEEP or not symbols:
            return symbols
        if rule == COPIED:
            symbols = [copy(s) if _is_parameter(s, "float32") else s for s in symbols]
        target = self.dtype if rule in (COMPUTE, COPIED) else "float32"
        if handle in _FIRST_ONLY:
            return [cast(symbols[0], target), *symbols[1:]]
        return [s if _is_parameter(s, target) else cast(s, target) for s in symbols]


def _is_parameter(symbol: Symbol, dtype: str) -> bool:
    """Return whether it is a parameter of that dtype.

    A cast of one would do nothing, and MXNet 1.9 cannot differentiate ``Deconvolution`` by a weight behind it.
    """
    return bool(symbol.attr("__dtype__") == str(CODES[dtype]))


def _multicast(symbols: list[Symbol]) -> list[Symbol]:
    name = mx.name.NameManager._current.value.get(None, "amp_multicast")
    is_np = isinstance(symbols[0], mx.sym.np._Symbol)
    attributes = (["num_outputs"], [len(symbols)])
    return list(create_native(op_handle("amp_multicast"), symbols, None, *attributes, name, is_np, False))


def cast_floats(value: object, dtype: str) -> Any:
    """Cast the float32 and 16-bit tensors in nested lists to ``dtype``; everything else stays."""
    codes = [code for name, code in CODES.items() if name != dtype]

    def one(tensor: Any) -> object:
        if isinstance(tensor, NativeSymbol):
            return cast(tensor, dtype)
        return cast(tensor, dtype) if dtype_code(tensor) in codes else tensor

    return map_tensors(one, value)
