"""Names and text of policies: presets, other libraries' names, and the text form that reads back.

Grammar: a base, then settings that differ from it, each behind a semicolon::

    mixed_float16;loss_scale=dynamic(initial_scale=8.0);ops=softmax:float32,exp:widest;layers=head.*:float32
    p=float32,c=float16,o=float16;keep_norm_float32=false
"""

from __future__ import annotations

from typing import Any

from ..errors import PolicyError, nearest, shown
from ..loss_scale import parse_loss_scale
from .policy import COMPUTE_DTYPES, DTYPES, PRESETS, Policy, canonical_dtype

ALIASES = {
    "o0": "float32", "o1": "mixed_float16", "o2": "mixed_float16", "o3": "float16",  # Apex
    "32-true": "float32", "16-mixed": "mixed_float16", "bf16-mixed": "mixed_bfloat16",  # Lightning
    "16-true": "float16", "bf16-true": "bfloat16",
    "no": "float32", "fp16": "mixed_float16", "bf16": "mixed_bfloat16", "fp8": "mixed_float8",  # Accelerate
    "float8_from_mixed_bfloat16": "mixed_float8",  # Keras 3
}  # fmt: skip
"""Names from elsewhere → the preset that does there what the name does. Apex's O1 and O2 differ in how they cast, not
in what trains: float32 master weights, float16 computations, float32 batch norm, dynamic loss scale."""

AMBIGUOUS = {
    "16": "mixed_float16", "half": "mixed_float16", "mixed": "mixed_float16", "amp": "mixed_float16",
    "16bit": "mixed_float16", "mixed_precision": "mixed_float16", "mixed_half": "mixed_float16",
    "8": "mixed_float8", "8bit": "mixed_float8", "float8": "mixed_float8", "8-mixed": "mixed_float8",
    # Lightning's keep the parameters in bfloat16 or float16, and scale by the history of maxima.
    "transformer-engine": "mixed_float8", "transformer-engine-float16": "mixed_float8",
    "32": "float32", "full": "float32", "float": "float32",
}  # fmt: skip
"""Names that mean different things in different libraries → the likely meaning."""

_PARTS = {"p": "param_dtype", "params": "param_dtype", "c": "compute_dtype", "compute": "compute_dtype"}
_PARTS |= {"o": "output_dtype", "output": "output_dtype"}


def parse_policy(text: str) -> Policy:
    """Read ``text``; see the module's grammar.

    Raises:
        PolicyError: unknown, ambiguous or malformed.
    """
    if not isinstance(text, str):
        raise PolicyError(f"a policy name must be text, got {text!r}")
    base, *settings = text.split(";")
    policy = _parse_base(base.strip())
    changes: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        _read_setting(changes, key.strip(), value.strip(), text)
    return policy.replace(**changes) if changes else policy


def _parse_base(name: str) -> Policy:
    if "=" in name:
        return _parse_triple(name)
    key = name.lower()
    key = ALIASES.get(key, key)
    if key in PRESETS:
        return PRESETS[key]
    if key in AMBIGUOUS:
        raise PolicyError(
            f"policy {name!r} is ambiguous (it means different things in different libraries): "
            f"write {AMBIGUOUS[key]!r} if that is what you mean, or one of {', '.join(PRESETS)}"
        )
    raise PolicyError(
        f"unknown policy {shown(name)}{nearest(key, [*PRESETS, *ALIASES])} (presets: {', '.join(PRESETS)})"
    )


def _parse_triple(text: str) -> Policy:
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
    return Policy(parts["param_dtype"], parts["compute_dtype"], parts.get("output_dtype", parts["param_dtype"]))


def _read_setting(changes: dict[str, Any], key: str, value: str, whole: str) -> None:
    if key == "loss_scale":
        changes["loss_scale"] = parse_loss_scale(value)
    elif key == "ops":
        changes["op_overrides"] = _read_pairs(value, whole)
    elif key == "layers":
        changes["layer_overrides"] = _read_pairs(value, whole)
    elif key == "keep_norm_float32" and value.lower() in ("true", "false"):
        changes["keep_norm_float32"] = value.lower() == "true"
    else:
        known = ("loss_scale", "ops", "layers", "keep_norm_float32")
        raise PolicyError(f"policy {whole!r}: cannot read {key}={value}{nearest(key, known)}")


def _read_pairs(text: str, whole: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, value = item.rpartition(":")
        if not colon:
            raise PolicyError(f"policy {whole!r}: {item!r} is not written name:value")
        pairs[name] = value
    return pairs


def policy_text(policy: Policy) -> str:
    """Return the canonical text of ``policy``: the inverse of :func:`parse_policy`."""
    base = PRESETS.get(policy.name)
    text = policy.name
    if base is None:
        text = f"p={policy.param_dtype},c={policy.compute_dtype},o={policy.output_dtype}"
        base = Policy(policy.param_dtype, policy.compute_dtype, policy.output_dtype)
    settings = []
    if policy.loss_scale is not None:
        settings.append(f"loss_scale={policy.loss_scale}")
    for key, pairs in (("ops", policy.op_overrides), ("layers", policy.layer_overrides)):
        if pairs:
            settings.append(f"{key}=" + ",".join(f"{name}:{value}" for name, value in pairs.items()))
    if policy.keep_norm_float32 != base.keep_norm_float32:
        settings.append(f"keep_norm_float32={str(policy.keep_norm_float32).lower()}")
    return ";".join([text, *settings])
