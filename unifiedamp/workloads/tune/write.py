"""Writes a configuration back with what was found, and on what evidence; comments and order stay as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...policy import Policy
from .prober import Finding


def tuned(config: Path, backend: str, chosen: Finding, scale: Any, evidence: Mapping[str, Any]) -> str:
    """Return the configuration's text with the choice in ``[amp]`` and the grounds in ``[evidence]``.

    Args:
        config: the file as it is, TOML or JSON.
        backend: what it was tuned for.
        chosen: the policy to use.
        scale: the loss scale to write, as a configuration holds it; None leaves what is there.
        evidence: plain values, without None.

    Raises:
        ConfigError: a TOML file, and tomlkit is not installed.
    """
    return tuned_text(config.read_text(encoding="utf-8"), config.suffix, backend, chosen, scale, evidence)


def tuned_text(text: str, suffix: str, backend: str, chosen: Finding, scale: Any, evidence: Mapping[str, Any]) -> str:
    """Do the same with a configuration's text; an empty one begins a new configuration.

    Args:
        text: of the configuration.
        suffix: ".json" for JSON, else it is TOML.
        backend, chosen, scale, evidence: see :func:`tuned`.

    Raises:
        ConfigError: see :func:`tuned`.
    """
    if suffix.lower() == ".json":
        table = json.loads(text or "{}")
        _fill(table, backend, chosen, scale, evidence)
        return json.dumps(table, indent=2) + "\n"
    try:
        import tomlkit
    except ImportError as error:
        raise ConfigError(
            "writing a TOML file needs tomlkit: pip install tomlkit, or give a .json configuration"
        ) from error
    document = tomlkit.parse(text)
    _fill(document, backend, chosen, scale, evidence)
    return tomlkit.dumps(document)


def _fill(table: Any, backend: str, chosen: Finding, scale: Any, evidence: Mapping[str, Any]) -> None:
    amp = table.setdefault("amp", {})
    amp["backend"] = backend
    amp["policy"] = _policy(chosen.policy)
    if scale is not None:
        amp["loss_scale"] = scale
    table["evidence"] = evidence


def _policy(text: str) -> Any:
    """Return a policy as a configuration holds it: its name, or a table where layers are overridden."""
    policy = Policy.parse(text)
    if not policy.layer_overrides or not policy.name:
        return text
    known = policy.replace(layer_overrides={}, op_overrides={})
    if str(known) != policy.name:
        return text
    table: dict[str, Any] = {"name": policy.name, "layer_overrides": dict(policy.layer_overrides)}
    return {**table, **({"op_overrides": dict(policy.op_overrides)} if policy.op_overrides else {})}


def as_evidence(findings: Sequence[Finding], chosen: Finding, why: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table ``[evidence]``: plain values without None, which TOML does not have."""
    found = {one.policy: {k: v for k, v in asdict(one).items() if k != "policy" and v is not None} for one in findings}
    for row in found.values():
        for key, value in row.items():
            row[key] = float(f"{value:.6g}") if isinstance(value, float) else value
    return {**about, "chosen": chosen.policy, "why": why, "policies": found}
