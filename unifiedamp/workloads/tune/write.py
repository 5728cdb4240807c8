"""Writes a configuration back with what was found, and on what evidence; comments and order stay as they were."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...policy import Policy
from ..configuration import Source
from .prober import Finding


def base(source: Source, target: Path, given: Mapping[str, Any]) -> str:
    """Return the text that the choice is written into: the configuration, or a new one that names the workload.

    Args:
        source: what was tuned.
        target: where it will be written; the workload is named from there.
        given: settings of the command line, which the new file holds too.
    """
    if source.config is not None and not given and _names(source, target):
        return source.config.read_text(encoding="utf-8")
    reference = os.path.relpath(source.workload.path, target.parent)
    if source.workload.name is not None:
        reference += f":{source.workload.name}"
    parse, dump = _format(target.suffix)
    table = parse("")
    if source.config is not None:
        table = parse(source.config.read_text(encoding="utf-8"))
    table["workload"] = reference
    if given:
        table["settings"] = {**table.get("settings", {}), **given}
    return dump(table)


def _names(source: Source, target: Path) -> bool:
    """Return whether the configuration names the workload, seen from the target's folder too."""
    assert source.config is not None
    named = source.tables.get("workload")
    return named is not None and (
        source.config.parent.resolve() == target.parent.resolve() or Path(str(named)).is_absolute()
    )


def tuned_text(text: str, suffix: str, backend: str, chosen: Finding, scale: Any, evidence: Mapping[str, Any]) -> str:
    """Return the configuration's text with the choice in ``[amp]`` and the grounds in ``[evidence]``.

    Args:
        text: the configuration as it is; an empty one begins a new configuration.
        suffix: ".toml" or ".json".
        backend: what it was tuned for.
        chosen: the policy to use.
        scale: the loss scale to write, as a configuration holds it; None leaves what is there.
        evidence: plain values, without None.

    Raises:
        ConfigError: a TOML file, and tomlkit is not installed.
    """
    parse, dump = _format(suffix)
    table = parse(text)
    _fill(table, backend, chosen, scale, evidence)
    return dump(table)


def _format(suffix: str) -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    """Return what reads and writes a format."""
    if suffix.lower() == ".json":
        return lambda text: json.loads(text or "{}"), lambda table: json.dumps(table, indent=2) + "\n"
    try:
        import tomlkit
    except ImportError as error:
        raise ConfigError(
            "writing a TOML file needs tomlkit: pip install tomlkit, or give a .json configuration"
        ) from error
    return tomlkit.parse, tomlkit.dumps


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
