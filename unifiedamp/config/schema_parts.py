"""Parts of the configuration's JSON schema that say more than a type: names, numbers in bounds, tables of one kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from ..backend import COMPILE_MODES, TUNING
from ..backend.tuning import PRESETS as TUNING_PRESETS
from ..backend.tuning import Tuning
from ..loss_scale import FLOAT32_MAX, KINDS
from ..loss_scale.settings import Setting
from ..policy import OP_CHOICES, OP_VOCABULARY
from ..policy.dtypes import COMPUTE_DTYPES, DTYPES
from ..policy.float8 import LARGEST_HISTORY, LARGEST_MARGIN, PRODUCT_DTYPES, PRODUCTS, RECIPES
from ..policy.presets import BLOCK_POLICIES, PRESET_FIELDS
from ..policy.updates import LARGEST_SEED, STATE_WORDS, UPDATES
from . import patterns

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}
POSITIVE: Schema = {"type": "number", "exclusiveMinimum": 2.0**-150, "maximum": FLOAT32_MAX}
COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}


def any_of(*choices: Schema) -> Schema:
    """Return a schema that takes what one of ``choices`` takes."""
    return {"anyOf": list(choices)}


def table(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    """Return the schema of a table with these settings and no others."""
    made: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**made, "required": list(required)} if required else made


def text(pattern: str) -> Schema:
    """Return the schema of text that is as the whole pattern says."""
    return {"type": "string", "pattern": pattern if pattern.startswith("^") else f"^(?:{pattern})$"}


def policy_text() -> Schema:
    """Return the schema of a policy's name or text."""
    return any_of({"enum": [*PRESET_FIELDS, *BLOCK_POLICIES]}, text(patterns.policy()))


def schedule(*policy: Schema) -> Schema:
    """Return the schema of a schedule: text, or a table of iterations and percentages whose values are policies."""
    keys = r"^\s*(\d+|\d{1,2}(\.\d+)?\s*%)\s*$"
    return any_of(
        {"type": "object", "propertyNames": {"pattern": keys}, "additionalProperties": any_of(*policy)},
        text(r"\s*0\s*:[^|]+(\|\s*[0-9.]+\s*%?\s*:[^|]+)*"),
    )


def dtype(known: Mapping[str, str]) -> Schema:
    """Return the schema of a dtype, by its name or another spelling."""
    return any_of({"enum": [*dict.fromkeys(known.values())]}, text(patterns.dtype(known)))


def policy_settings() -> dict[str, Schema]:
    """Return setting of the table ``[policy]`` → its schema."""
    choice = {"enum": [*OP_CHOICES]}
    layers = {
        "type": "object",
        "propertyNames": {"pattern": r"^\s*[^,;\s][^,;]*$"},
        "additionalProperties": dtype(DTYPES),
    }
    return {
        "name": policy_text(),
        "param_dtype": dtype(DTYPES),
        "compute_dtype": dtype(COMPUTE_DTYPES),
        "output_dtype": dtype(DTYPES),
        "op_overrides": table(dict.fromkeys(OP_VOCABULARY, choice)),
        "layer_overrides": layers,
        "keep_norm_float32": {"type": "boolean"},
        "update": {"enum": [*UPDATES]},
        "update_seed": {"type": "integer", "minimum": 0, "maximum": LARGEST_SEED},
        "state_dtype": dtype(STATE_WORDS),
        "emulate": {"type": "boolean"},
        "recipe": any_of({"enum": [*RECIPES]}, text(patterns.recipe())),
        **{name: {"enum": [*PRODUCT_DTYPES]} for name in PRODUCTS},
        "amax_history": {"type": "integer", "minimum": 1, "maximum": LARGEST_HISTORY},
        "margin": {"type": "integer", "minimum": 0, "maximum": LARGEST_MARGIN},
    }


def loss_scale() -> Schema:
    """Return the schema of a loss scale: a number, a name, text or a table."""
    names = {"enum": ["dynamic", "none"]}
    return any_of(names, POSITIVE, text(patterns.loss_scale()), *[_scale_table(kind) for kind in KINDS])


def _scale_table(kind: str) -> Schema:
    chosen = {"const": kind, "description": "The kind of loss scale; dynamic when left out."}
    taken = KINDS[kind].settings()
    settings = {"kind": chosen, **{each.name: _scale_setting(each, taken[each.name]) for each in fields(KINDS[kind])}}
    return {"title": f"{kind} loss scale", **table(settings, () if kind == "dynamic" else ("kind",))}


def _scale_setting(field: Field[Any], setting: Setting) -> Schema:
    return {**_scale_value(setting), "default": field.default, "description": setting.meaning}


def _scale_value(setting: Setting) -> Schema:
    if setting.kind != "number":
        return COUNT if setting.kind == "count" else {"enum": [*setting.words]}
    least: Schema = {"exclusiveMinimum": setting.above} if setting.above else {}
    most: Schema = {"exclusiveMaximum": setting.below} if setting.below < FLOAT32_MAX else {}
    return {**POSITIVE, **least, **most}


def compile_mode() -> Schema:
    """Return the schema of a mode of ``amp.compile``."""
    said = "; ".join(f"{name}: {meaning}" for name, meaning in COMPILE_MODES.items())
    return {"enum": [*COMPILE_MODES], "description": f"The default mode of amp.compile. {said}."}


def tuning() -> Schema:
    """Return the schema of the tuning: a preset or a table of items."""
    items = {each.name: _tuning_item(each) for each in fields(Tuning)}
    preset = {"enum": [*TUNING_PRESETS], "default": "off", "description": "What is left out is taken from here."}
    return any_of({"enum": [*TUNING_PRESETS]}, table({"preset": preset, **items}))


def _tuning_item(item: Any) -> Schema:
    said = TUNING.get(item.name, "items that have no effect here are no warning")
    if item.name == "checkpoint_layers":
        globs = {"type": "array", "items": {"type": "string", "minLength": 1}}
        return {**globs, "default": [], "description": f"Globs over layer paths: {said}."}
    default = {} if item.default is MISSING else {"default": item.default}
    return {"type": "boolean", **default, "description": f"{said[:1].upper()}{said[1:]}."}
