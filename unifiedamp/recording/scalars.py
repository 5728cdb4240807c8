"""A record's numbers by name, as tools that draw curves take them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .counts import Distribution

STATE = ("scale", "loss", "applied_steps", "skipped_steps")


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return name → number of a record; nothing of a header.

    ``scale`` is that of the step; of a ``skip`` record and of ``numbers`` that were logged, the next step's.
    """
    found = {name: float(record[name]) for name in STATE if record.get(name) is not None}
    if record["kind"] == "skip":
        found["scale"] = float(record["next_scale"])
    found.update({name: float(value) for name, value in record.get("numbers", {}).items()})
    for name, form, counts in gradients(record):
        share = counts.share(counts.flushed)
        if share is not None:
            found[f"flushed_{form}/{name}"] = share
    for row in record.get("activations", ()):
        if row["place"] == "output":
            found[f"activation/{row['layer'] or 'model'}"] = float(row["largest"])
    return found


def gradients(record: Mapping[str, Any]) -> Iterator[tuple[str, str, Distribution]]:
    """Yield name, form ("scaled" or "true") and counts of a record's gradients."""
    for name, gradient in record.get("gradients", {}).items():
        for form in ("scaled", "true"):
            yield name, form, Distribution.from_json(gradient[form])
