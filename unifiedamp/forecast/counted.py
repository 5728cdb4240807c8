"""What one process counted for a forecast, as plain JSON values that another one reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:  # it imports numpy
    from .totals import LayerTotals, Totals

FORMAT, VERSION = "unifiedamp-forecast-counts", 1


def dump_counts(about: Mapping[str, Any], totals: Totals) -> dict[str, Any]:
    """Return counts as plain JSON values: "format", "version", "about" and "layers"."""
    layers = [each.to_json() for each in totals.layers.values()]
    return {"format": FORMAT, "version": VERSION, "about": dict(about), "layers": layers}


def read_counts(counted: Any) -> tuple[dict[str, Any], list[LayerTotals]]:
    """Return "about" and the totals of each layer.

    Raises:
        ConfigError: another version wrote them, or they are damaged.
    """
    from .totals import LayerTotals

    if not isinstance(counted, Mapping) or counted.get("format") != FORMAT:
        raise ConfigError("these are no counts of a forecast; give what the run of amp.forecast returned by counted()")
    version = counted.get("version")
    if version != VERSION:
        raise ConfigError(
            f"the counts of the script's session are of format {version!r}, and this command reads format {VERSION}: "
            "the script runs with another version of unifiedamp; run the command in the script's environment, or "
            "install one version in both"
        )
    try:
        about = dict(counted["about"])
        _ = about["steps"], about["asked"]
        return about, [LayerTotals.from_json(each) for each in counted["layers"]]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the counts of the forecast are damaged ({type(error).__name__}: {error}); count again"
        ) from error
