"""Regular expressions of the text that settings take, for the JSON schema.

They keep to what JavaScript, Rust and Python read alike: no flags, so that a name in any case is spelled out letter by
letter.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..loss_scale import KINDS
from ..loss_scale.settings import Setting
from ..policy import OP_CHOICES, OP_VOCABULARY
from ..policy.dtypes import COMPUTE_DTYPES, DTYPES
from ..policy.float8 import PRODUCT_DTYPES, PRODUCTS, RECIPE_ALIASES, RECIPES
from ..policy.presets import ALIASES, BLOCK_POLICIES, PRESET_FIELDS
from ..policy.updates import STATE_WORDS, UPDATES

NUMBER = r"[+]?(?=[0-9.]*[1-9])(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
COUNT = r"[+]?0*[1-9][0-9]*"
DTYPE_WORDS, COMPUTE_WORDS = (tuple(words) for words in (DTYPES, COMPUTE_DTYPES))


def any_case(words: Iterable[str]) -> str:
    """Return a group that matches any of ``words``, in upper or lower case."""
    return "(?:" + "|".join("".join(_letter(one) for one in word) for word in words) + ")"


def _letter(one: str) -> str:
    return f"[{one.upper()}{one.lower()}]" if one.isalpha() else one


def dtype(words: Iterable[str] = DTYPE_WORDS) -> str:
    """Return the pattern of a dtype in any of its spellings, with space around it."""
    return rf"\s*{any_case(words)}\s*"


def loss_scale() -> str:
    """Return the pattern of a loss scale's text: a number, a name, or a name with settings in brackets."""
    kinds = [rf"{any_case([kind])}(?:\s*\({_settings(kind)}\))?" for kind in KINDS]
    return rf"\s*(?:{NUMBER}|{'|'.join(kinds)})\s*"


def _settings(kind: str) -> str:
    taken = KINDS[kind].settings()
    return _listed("|".join(rf"{name}\s*=\s*{_scale_value(each)}\s*" for name, each in taken.items()))


def _scale_value(setting: Setting) -> str:
    return {"word": f"(?:{'|'.join(setting.words)})", "count": COUNT, "number": NUMBER}[setting.kind]


def policy() -> str:
    """Return the pattern of a policy: a preset, an alias or three dtypes, then what differs from them."""
    name = any_case([*PRESET_FIELDS, *BLOCK_POLICIES, *ALIASES])
    return rf"^\s*(?:{name}|{_triple()})\s*(?:;{_setting()})*$"


def _triple() -> str:
    parts = {"p": "params", "c": "compute", "o": "output"}
    item = {part: rf"\s*{any_case([part, long])}\s*={dtype(_words(part))}" for part, long in parts.items()}
    needed = "".join(rf"(?=(?:[^;]*,)?{item[part]}(?:[,;]|$))" for part in ("p", "c"))
    every = "|".join(item.values())
    return rf"{needed}(?:{every})(?:,(?:{every}))*"


def _words(part: str) -> tuple[str, ...]:
    return COMPUTE_WORDS if part == "c" else DTYPE_WORDS


def _setting() -> str:
    ops = _listed(rf"(?:{'|'.join(OP_VOCABULARY)}):(?:{'|'.join(OP_CHOICES)})\s*")
    layers = _listed(rf"[^,;\s][^,;]*:{dtype()}")
    flag = any_case(["true", "false"])
    update = rf"update\s*=\s*(?:{'|'.join(UPDATES)})\s*"
    update += rf"|state_dtype\s*={dtype(STATE_WORDS)}"
    flags = rf"(?:keep_norm_float32|emulate)\s*=\s*{flag}\s*|{update}|update_seed\s*=\s*[0-9]+\s*|{_float8()}"
    return rf"\s*(?:loss_scale\s*={loss_scale()}|ops\s*={ops}|layers\s*={layers}|{flags})"


def recipe() -> str:
    """Return the pattern of a recipe's name, with space around it."""
    return rf"\s*{any_case([*RECIPES, *RECIPE_ALIASES])}\s*"


def _float8() -> str:
    products = rf"(?:{'|'.join(PRODUCTS)})\s*=\s*(?:{'|'.join(PRODUCT_DTYPES)})\s*"
    counts = r"amax_history\s*=\s*0*[1-9][0-9]{0,3}\s*|margin\s*=\s*0*[0-9]\s*"
    return rf"recipe\s*={recipe()}|{products}|{counts}"


def _listed(item: str) -> str:
    """Return a list with commas, in which items may be left out; ``item`` includes the space behind it."""
    return rf"\s*(?:{item})?(?:,\s*(?:{item})?)*"
