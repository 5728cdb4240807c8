"""``unifiedamp schema``: the JSON schema of the configuration, for editors."""

from __future__ import annotations

import sys


def schema() -> None:
    """Print the JSON schema of the configuration, with which editors complete and check amp.toml.

    Example: unifiedamp schema > amp.schema.json, and "#:schema ./amp.schema.json" as the first line of amp.toml

    It completes the backends that are registered here, plugins included.
    """
    from ..config.schema import registered_plugins, schema_text

    sys.stdout.write(schema_text(registered_plugins()))
