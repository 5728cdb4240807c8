"""A session's state in a checkpoint file: its arrays are separate members, and text again when the file is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .averages import from_text, to_text

AVERAGES, UPDATE, HISTORY = "amp.ema", "amp.update", "amp.amax_history"
"""What the names of members begin with: averages (a number and a name follow), compensations and amax histories (a name
follows).
"""


def split_arrays(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a session's state with the names of arrays in their places, and name → array."""
    arrays, averages, kept = {}, [], dict(state)
    for number, each in enumerate(state.get("ema", ())):
        for name, text in each["weights"].items():
            arrays[f"{AVERAGES}.{number}.{name}"] = from_text(text, name)
        averages.append({**each, "weights": list(each["weights"])})
    if averages:
        kept["ema"] = averages
    if "update" in state:
        rests = state["update"]["compensation"]
        arrays |= {f"{UPDATE}.{name}": from_text(text, name) for name, text in rests.items()}
        kept["update"] = {**state["update"], "compensation": list(rests)}
    if "amax_history" in state:
        arrays |= {f"{HISTORY}.{name}": from_text(text, name) for name, text in state["amax_history"].items()}
        kept["amax_history"] = list(state["amax_history"])
    return kept, arrays


def join_arrays(state: Any, arrays: dict[str, Any]) -> Any:
    """Undo :func:`split_arrays`: take the arrays out of ``arrays`` and put them into the state, as text."""
    if not isinstance(state, dict):
        return state
    joined = dict(state)
    if isinstance(state.get("ema"), list):
        joined["ema"] = [
            {**each, "weights": dict(_taken(arrays, f"{AVERAGES}.{number}", each["weights"]))}
            for number, each in enumerate(state["ema"])
        ]
    if isinstance(state.get("update"), dict):
        rests = dict(_taken(arrays, UPDATE, state["update"]["compensation"]))
        joined["update"] = {**state["update"], "compensation": rests}
    if isinstance(state.get("amax_history"), list):
        joined["amax_history"] = dict(_taken(arrays, HISTORY, state["amax_history"]))
    return joined


def _taken(arrays: dict[str, Any], member: str, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        yield name, to_text(arrays.pop(f"{member}.{name}"))
