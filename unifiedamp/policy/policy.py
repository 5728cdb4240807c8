"""Precision policies: three dtypes, a loss scale and overrides, as one frozen value with a text form.

The triple and its text (``p=float32,c=float16,o=float32``) follow jmp; the preset names are Keras's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..errors import PolicyError, nearest
from ..loss_scale import DynamicLossScale, LossScale, NoLossScale, parse_loss_scale
from ..names import PolicyName
from ..notebook import table_html
from ..plain_values import plain
from .dtypes import COMPUTE_DTYPES, DTYPES, canonical_dtype
from .float8 import HISTORY, PRODUCTS, Float8Recipe, read_recipe
from .presets import PRESET_FIELDS, preset_name
from .text import parse_fields, policy_text
from .updates import check_update, read_state_dtype

OP_VOCABULARY = (
    "matmul", "linear", "conv", "conv_transpose", "attention", "embedding", "rnn",
    "softmax", "log_softmax", "layer_norm", "batch_norm", "group_norm",
    "relu", "gelu", "silu", "sigmoid", "tanh", "softplus",
    "exp", "log", "pow", "rsqrt", "sum", "mean", "prod", "cumsum", "norm",
    "cross_entropy", "mse_loss", "l1_loss",
)  # fmt: skip
"""Operations that ``op_overrides`` can name, in framework-neutral words."""

OP_CHOICES = ("compute", "float32", "widest")
"""What an operation can be set to: the policy's compute dtype, float32, or the widest dtype among its inputs."""


class FrozenDict(Mapping[str, str]):
    """A hashable mapping that keeps its keys in order."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        self._items = dict(items or {})

    def __getitem__(self, key: str) -> str:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


@dataclass(frozen=True)
class Policy:
    """Which dtype parameters, computations and outputs have. Frozen; compares and hashes by value.

    Args:
        param_dtype: dtype of the trainable parameters ("float32", "float16", "bfloat16").
        compute_dtype: dtype that matrix products, convolutions and the like run in. "float8" is for the products of
            linear layers, forward and backward; whatever else would be cast then runs in bfloat16.
        output_dtype: dtype of a prepared model's outputs, and so of what the loss is computed from.
        loss_scale: a ``LossScale``, or None for the default: dynamic where computations are float16 and
            parameters float32, none elsewhere. Numbers, names and mappings are read by ``parse_loss_scale``.
        op_overrides: operation of :data:`OP_VOCABULARY` → "compute", "float32" or "widest".
        layer_overrides: glob over layer paths (components joined by dots) → dtype the layer computes in.
        keep_norm_float32: normalization layers keep parameters and statistics in float32.
        update: how an optimizer's float32 update is rounded to bfloat16 parameters that have no float32 master
            weights: "stochastic", "kahan" (a bfloat16 compensation beside each parameter), or None, the framework's
            own update in bfloat16; see :mod:`unifiedamp.policy.updates`.
        update_seed: the seed of stochastic rounding, 0 to 2**31 - 1.
        state_dtype: what an optimizer's moments are kept in between steps: "bfloat16", "float8" (E4M3 with a scale for
            256 numbers), both rounded stochastically, or None, the optimizer's own. Updates are computed in float32.
        emulate: run the numerics of ``compute_dtype`` on any device: operands and results of matrix products,
            convolutions and the like are rounded to it, and the products run in float32. Slower; for trying a format.
        recipe: how float8 operands are scaled: "tensorwise", "delayed", "rowwise", "rowwise_gw_hp" or "block128", or
            what torchao and Transformer Engine call them; see :mod:`unifiedamp.policy.float8`. "rowwise_gw_hp" is kept
            as "rowwise" with ``wgrad="bfloat16"``. With ``emulate`` also a block format in place of float8: "mxfp8",
            "mxfp6", "mxfp6_e2m3", "mxfp4", "nvfp4", "mxint8" or "int8"; "mixed_nvfp4" is ``mixed_float8`` with such a
            recipe.
        fprop: what a float8 layer's forward product runs in: "float8" or "bfloat16".
        dgrad: the same, of its gradient of the inputs.
        wgrad: the same, of its gradient of the weights; None for the recipe's own.
        amax_history: of recipe "delayed", the optimizer steps whose largest magnitudes set the scales, 1 to 9999.
        margin: of recipe "delayed", powers of two left free below float8's maximum, 0 to 9.

    Raises:
        PolicyError: a dtype, operation or choice is unknown, or the parts contradict each other.
    """

    param_dtype: str = "float32"
    compute_dtype: str = "float32"
    output_dtype: str = "float32"
    loss_scale: LossScale | None = None
    op_overrides: Mapping[str, str] = field(default_factory=FrozenDict)
    layer_overrides: Mapping[str, str] = field(default_factory=FrozenDict)
    keep_norm_float32: bool = True
    update: str | None = None
    update_seed: int = 0
    state_dtype: str | None = None
    emulate: bool = False
    recipe: str = "tensorwise"
    fprop: str = "float8"
    dgrad: str = "float8"
    wgrad: str | None = None
    amax_history: int = HISTORY
    margin: int = 0

    def __post_init__(self) -> None:
        for name in ("param_dtype", "compute_dtype", "output_dtype"):
            known = COMPUTE_DTYPES if name == "compute_dtype" else DTYPES
            object.__setattr__(self, name, canonical_dtype(getattr(self, name), name, known))
        if self.loss_scale is not None:
            object.__setattr__(self, "loss_scale", parse_loss_scale(self.loss_scale))
        object.__setattr__(self, "op_overrides", _checked_ops(self.op_overrides))
        object.__setattr__(self, "layer_overrides", _checked_layers(self.layer_overrides))
        for name in ("keep_norm_float32", "emulate"):
            if not isinstance(getattr(self, name), bool):
                raise PolicyError(f"{name} must be true or false, got {getattr(self, name)!r}")
        object.__setattr__(self, "state_dtype", read_state_dtype(self.state_dtype))
        self._set_recipe()
        if self.compute_dtype == "float8":
            _check_float8(self)
        check_update(self)

    def _set_recipe(self) -> None:
        given = {name: getattr(self, name) for name in ("recipe", *PRODUCTS, "amax_history", "margin")}
        found = read_recipe(given, self.compute_dtype == "float8")
        object.__setattr__(self, "recipe", found.scaling)
        object.__setattr__(self, "wgrad", found.wgrad)

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Read a preset, an alias of another library, or the text that ``str(policy)`` gives.

        Raises:
            PolicyError: the name is unknown (with the nearest one) or ambiguous (with what it usually means).
        """
        return cls(**parse_fields(text))

    @property
    def resolved_loss_scale(self) -> LossScale:
        """``loss_scale``, or the default for these dtypes."""
        if self.loss_scale is not None:
            return self.loss_scale
        scaled = self.compute_dtype == "float16" and self.param_dtype == "float32"
        return DynamicLossScale() if scaled else NoLossScale()

    @property
    def name(self) -> str:
        """The preset with these dtypes, or ``""``; overrides do not count."""
        return preset_name(self.param_dtype, self.compute_dtype, self.output_dtype)

    @property
    def is_mixed(self) -> bool:
        """Whether computations run in another dtype than parameters have."""
        return self.param_dtype != self.compute_dtype

    @property
    def region_dtype(self) -> str:
        """The dtype that an autocast region casts to: ``compute_dtype``, but bfloat16 around float8 linear layers."""
        return "bfloat16" if self.compute_dtype == "float8" else self.compute_dtype

    @property
    def float8(self) -> Float8Recipe:
        """How linear layers compute where ``compute_dtype`` is float8."""
        wgrad = self.wgrad or "float8"
        return Float8Recipe(self.recipe, self.fprop, self.dgrad, wgrad, self.amax_history, self.margin)

    def replace(self, **changes: Any) -> Policy:
        """Return a copy with some fields changed; ``wgrad`` is that of a recipe that is given alone."""
        if "recipe" in changes:
            changes.setdefault("wgrad", None)
        return replace(self, **changes)

    def __str__(self) -> str:
        return policy_text(self)

    def __repr__(self) -> str:
        return f"Policy.parse({str(self)!r})"

    def _repr_html_(self) -> str:
        return table_html(f"Policy {self}", vars(self).items())


def _check_float8(policy: Policy) -> None:
    if policy.param_dtype != "float32":
        raise PolicyError(
            f"compute_dtype float8 needs float32 parameters, but param_dtype is {policy.param_dtype}: "
            "use 'mixed_float8'"
        )
    if policy.op_overrides.get("linear", "compute") != "compute":
        raise PolicyError(
            f"op_overrides.linear is {policy.op_overrides['linear']!r}, so nothing is left to run in float8: use "
            "'mixed_bfloat16', or layer_overrides to take single layers out"
        )


def _checked_ops(overrides: Mapping[str, str]) -> FrozenDict:
    overrides = plain(overrides, "op_overrides")
    for op, choice in overrides.items():
        if op not in OP_VOCABULARY:
            raise PolicyError(f"op_overrides: unknown operation {op!r}{nearest(op, OP_VOCABULARY)}")
        if choice not in OP_CHOICES:
            raise PolicyError(f"op_overrides.{op} must be one of {', '.join(OP_CHOICES)}, got {choice!r}")
    return FrozenDict(overrides)


def _checked_layers(overrides: Mapping[str, str]) -> FrozenDict:
    overrides = plain(overrides, "layer_overrides")
    for glob in overrides:
        if not isinstance(glob, str) or not glob.strip() or set(glob) & set(",;"):
            raise PolicyError(f"layer_overrides: {glob!r} is not a glob over layer paths (no commas or semicolons)")
    return FrozenDict({glob: canonical_dtype(dtype, f"layer_overrides[{glob!r}]") for glob, dtype in overrides.items()})


PRESETS: dict[str, Policy] = {name: Policy(**settings) for name, settings in PRESET_FIELDS.items()}
"""The named policies."""

AnyPolicy: TypeAlias = PolicyName | str | Policy | None
"""What stands for a policy where it is an argument; None for the session's."""
