"""Names and text of policies: presets, other libraries' names, and the text form that reads back.

Grammar: a base, then settings that differ from it, each behind a semicolon::

    mixed_float16;loss_scale=dynamic(initial_scale=8.0);ops=softmax:float32,exp:widest;layers=head.*:float32
    p=float32,c=float16,o=float16;keep_norm_float32=false;emulate=true
    bfloat16;update=stochastic;update_seed=7;state_dtype=bfloat16
    mixed_float8;recipe=delayed;wgrad=bfloat16;amax_history=16
    mixed_nvfp4;emulate=true
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..errors import PolicyError, nearest
from ..loss_scale import LossScale, parse_loss_scale
from .dtypes import COMPUTE_DTYPES, DTYPES, canonical_dtype
from .float8 import PRODUCTS, Float8Recipe
from .presets import PRESET_FIELDS, preset_fields, preset_name

Fields = dict[str, Any]
"""Arguments of ``Policy``."""

_PARTS = {"p": "param_dtype", "params": "param_dtype", "c": "compute_dtype", "compute": "compute_dtype"}
_NUMBERS = ("update_seed", "amax_history", "margin")
_PARTS |= {"o": "output_dtype", "output": "output_dtype"}


class PolicyFields(Protocol):
    """The fields of a ``Policy``."""

    @property
    def param_dtype(self) -> str:
        """The dtype of the parameters."""

    @property
    def compute_dtype(self) -> str:
        """The dtype of computations."""

    @property
    def output_dtype(self) -> str:
        """The dtype of a model's outputs."""

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale, or None for the default."""

    @property
    def op_overrides(self) -> Mapping[str, str]:
        """Operation → choice."""

    @property
    def layer_overrides(self) -> Mapping[str, str]:
        """Glob → dtype."""

    @property
    def keep_norm_float32(self) -> bool:
        """Whether normalization layers keep float32."""

    @property
    def update(self) -> str | None:
        """How 16-bit parameters are updated."""

    @property
    def update_seed(self) -> int:
        """The seed of stochastic rounding."""

    @property
    def state_dtype(self) -> str | None:
        """What moments are kept in."""

    @property
    def emulate(self) -> bool:
        """Whether the compute dtype's numerics run in float32."""

    @property
    def float8(self) -> Float8Recipe:
        """How float8 linear layers compute."""


def parse_fields(text: str) -> Fields:
    """Return the arguments of the ``Policy`` that ``text`` names; see the module's grammar.

    Raises:
        PolicyError: unknown, ambiguous or malformed.
    """
    if not isinstance(text, str):
        raise PolicyError(f"a policy name must be text, got {text!r}")
    base, *settings = text.split(";")
    name = base.strip()
    policy = _parse_triple(name) if "=" in name else preset_fields(name)
    for setting in settings:
        key, _, value = setting.partition("=")
        _read_setting(policy, key.strip(), value.strip(), text)
    return policy


def _parse_triple(text: str) -> Fields:
    parts: dict[str, str] = {}
    for item in text.split(","):
        key, _, value = item.partition("=")
        name = _PARTS.get(key.strip().lower())
        if name is None:
            raise PolicyError(f"policy {text!r}: {key.strip()!r} is none of p, c, o (params, compute, output)")
        known = COMPUTE_DTYPES if name == "compute_dtype" else DTYPES
        parts[name] = canonical_dtype(value, f"policy {text!r}: {key.strip()}", known)
    for part in ("param_dtype", "compute_dtype"):
        if part not in parts:
            raise PolicyError(f"policy {text!r} says nothing about {part}; write p=…,c=…,o=…")
    # jmp: the output dtype follows the parameters' when left out.
    return {"output_dtype": parts["param_dtype"], **parts}


def _read_setting(changes: Fields, key: str, value: str, whole: str) -> None:
    if key == "loss_scale":
        changes["loss_scale"] = parse_loss_scale(value)
    elif key == "ops":
        changes["op_overrides"] = _read_pairs(value, whole)
    elif key == "layers":
        changes["layer_overrides"] = _read_pairs(value, whole)
    elif key in ("keep_norm_float32", "emulate") and value.lower() in ("true", "false"):
        changes[key] = value.lower() == "true"
    elif key in ("update", "state_dtype", "recipe", *PRODUCTS):
        changes[key] = value
    elif key in _NUMBERS and value.isdecimal():
        changes[key] = int(value)
    else:
        known = (
            "loss_scale",
            "ops",
            "layers",
            "keep_norm_float32",
            "update",
            "state_dtype",
            "emulate",
            "recipe",
            *PRODUCTS,
            *_NUMBERS,
        )
        raise PolicyError(f"policy {whole!r}: cannot read {key}={value}{nearest(key, known)}")


def _read_pairs(text: str, whole: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, value = item.rpartition(":")
        if not colon:
            raise PolicyError(f"policy {whole!r}: {item!r} is not written name:value")
        pairs[name] = value
    return pairs


def policy_text(policy: PolicyFields) -> str:
    """Return the canonical text of ``policy``: the inverse of :func:`parse_fields`."""
    dtypes = (policy.param_dtype, policy.compute_dtype, policy.output_dtype)
    name = preset_name(*dtypes)
    of_recipe = policy.float8.settings()
    written = name or "p={},c={},o={}".format(*dtypes)
    if name == "mixed_float8" and policy.float8.block_format:
        written = f"mixed_{of_recipe.pop('recipe')}"
    settings = [written]
    if policy.loss_scale is not None:
        settings.append(f"loss_scale={policy.loss_scale}")
    for key, pairs in (("ops", policy.op_overrides), ("layers", policy.layer_overrides)):
        if pairs:
            settings.append(f"{key}=" + ",".join(f"{name}:{value}" for name, value in pairs.items()))
    if policy.keep_norm_float32 != PRESET_FIELDS.get(name, {}).get("keep_norm_float32", True):
        settings.append(f"keep_norm_float32={str(policy.keep_norm_float32).lower()}")
    if policy.update is not None:
        settings.append(f"update={policy.update}")
    if policy.update_seed:
        settings.append(f"update_seed={policy.update_seed}")
    if policy.state_dtype is not None:
        settings.append(f"state_dtype={policy.state_dtype}")
    settings += [f"{name}={value}" for name, value in of_recipe.items()]
    if policy.emulate:
        settings.append("emulate=true")
    return ";".join(settings)
