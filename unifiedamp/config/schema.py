"""The configuration's JSON schema, with which editors complete and check ``amp.toml``.

JSON schema has no comparison of two settings with each other. What ``Amp.from_config`` refuses for such a reason (a
scale outside its bounds, master weights of float32 parameters), or because of the machine, passes the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..backend import BackendPlugin
from ..errors import BackendUnavailableError
from ..policy.dtypes import DTYPES
from . import plugins
from . import schema_parts as parts
from .arguments import AmpConfig, PolicyTable
from .schema_parts import Schema

FILE = "amp.schema.json"
"""The file beside this module that holds the schema of the bundled backends."""


def registered_plugins() -> list[BackendPlugin]:
    """Return the plugins of all registered backends, those that are likely meant first; broken ones are left out."""
    found = []
    for name in plugins.backend_entry_points():
        try:
            found.append(plugins.load_plugin(name))
        except BackendUnavailableError:
            continue
    return sorted(found, key=lambda plugin: (plugin.place, plugin.name))


def schema_text(backends: Iterable[BackendPlugin]) -> str:
    """Return the schema as a file holds it."""
    return json.dumps(make_schema(list(backends)), indent=1, ensure_ascii=False) + "\n"


def make_schema(backends: list[BackendPlugin]) -> Schema:
    """Return the schema of a configuration file: a table ``[amp]`` beside others, or its settings at the top level.

    Args:
        backends: their names and options are completed. Other names are taken too.
    """
    amp = {"$ref": "#/definitions/amp"}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "unifiedamp configuration",
        "description": "The arguments of unifiedamp.Amp, as Amp.from_config reads them.",
        "type": "object",
        "properties": {"amp": amp},
        "if": {"required": ["amp"]},
        "else": amp,
        "anyOf": [{}, amp],  # refuses nothing; editors that know no "else" complete by it
        "definitions": {"amp": _amp(backends), "policy_text": parts.policy_text(), "policy": _policy()},
    }


def _amp(backends: list[BackendPlugin]) -> Schema:
    made = AmpConfig.model_json_schema()
    special = {
        "backend": parts.any_of({"enum": [each.name for each in backends]}, {"type": "string"}, parts.NULL),
        "policy": parts.any_of({"$ref": "#/definitions/policy_text"}, {"$ref": "#/definitions/policy"}, parts.NULL),
        "schedule": _or_null(parts.schedule({"$ref": "#/definitions/policy_text"}, {"$ref": "#/definitions/policy"})),
        "loss_scale": _or_null(parts.loss_scale()),
        "reduce_dtype": _or_null(parts.dtype(DTYPES)),
        "compile": parts.compile_mode(),
        "tuning": _or_null(parts.tuning()),
        "backend_options": parts.any_of(_options(backends), parts.NULL),
    }
    return parts.table({name: _described(old, special.get(name)) for name, old in made["properties"].items()})


def _policy() -> Schema:
    described = PolicyTable.model_json_schema()["properties"]
    named = {"$ref": "#/definitions/policy_text"}
    settings = {**parts.policy_settings(), "name": named}
    return parts.table(
        {name: _described(described[name], parts.any_of(each, parts.NULL)) for name, each in settings.items()}
    )


def _or_null(schema: Schema) -> Schema:
    return parts.any_of(*schema["anyOf"], parts.NULL)


def _described(made: Schema, special: Schema | None) -> Schema:
    """Return a setting's schema with the description of the model, and its default unless that is null."""
    kept = {key: made[key] for key in ("description", "default") if made.get(key) is not None}
    rest = {key: value for key, value in made.items() if key not in ("title", "default")}
    return {**(rest if special is None else special), **kept}


def _options(backends: list[BackendPlugin]) -> Schema:
    known: dict[str, Any] = {
        each.name: {"description": f"Settings of backend {each.name} alone.", **_option_table(each)}
        for each in backends
    }
    return {"type": "object", "properties": known, "additionalProperties": {"type": "object"}}


def _option_table(plugin: BackendPlugin) -> Schema:
    if plugin.options is None:
        return {"type": "object"}
    try:
        return parts.table(json.loads(json.dumps({name: dict(each) for name, each in plugin.options.items()})))
    except (AttributeError, TypeError, ValueError):  # what a plugin says of its options is no JSON
        return {"type": "object"}
