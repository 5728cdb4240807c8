"""The dtypes of policies, and their spellings."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import PolicyError, nearest

DTYPES = {
    "float32": "float32", "f32": "float32", "fp32": "float32",
    "float16": "float16", "f16": "float16", "fp16": "float16",
    "bfloat16": "bfloat16", "bf16": "bfloat16",
}  # fmt: skip

COMPUTE_DTYPES = DTYPES | {"float8": "float8", "f8": "float8", "fp8": "float8"}
"""What ``compute_dtype`` may be: any dtype above, or float8, which linear layers alone compute in."""


def canonical_dtype(value: object, where: str = "dtype", known: Mapping[str, str] = DTYPES) -> str:
    """Return the full name of a dtype that policies know.

    Args:
        value: what the user wrote.
        where: what it is for, in the message.
        known: spelling → name: :data:`DTYPES`, or :data:`COMPUTE_DTYPES` where float8 is one of them.

    Raises:
        PolicyError: not one of them.
    """
    key = value.strip().lower() if isinstance(value, str) else ""
    if key in known:
        return known[key]
    *names, last = (repr(name) for name in dict.fromkeys(known.values()))
    hint = nearest(str(value), known)
    if COMPUTE_DTYPES.get(key) == "float8":
        hint = "; float8 is a compute_dtype alone, see policy 'mixed_float8'"
    raise PolicyError(f"{where} must be {', '.join(names)} or {last}, got {value!r}{hint}")
