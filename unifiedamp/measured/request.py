"""What a command asks of a measured run, as a file in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ConfigError

FILE, LOG, RECORDING, FORECAST = "run.json", "log.jsonl", "recording.jsonl", "forecast.json"
"""Names in the folder: the request, what the session notes, the recording, and what a forecast counted."""


@dataclass(frozen=True)
class Overrides:
    """Settings that win over the script's; None leaves what the script says.

    Attributes:
        policy: as ``Policy.parse`` reads it.
        loss_scale: as ``Amp`` takes it; for a policy that scales losses.
        compile: the mode of ``amp.compile``.
        backend_options: settings of the script's backend.
    """

    policy: str | None = None
    loss_scale: Any = None
    compile: str | None = None
    backend_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRequest:
    """What a measured run does.

    Attributes:
        do: "steps" (note them), "record" (each layer), "forecast" (count each layer's values), or "explain" (the plan,
            and end before the first step).
        turns: the numbers of the steps that end a turn, ascending; the last one ends the run.
        overrides: settings that win over the script's.
        waits: wait for permission before each turn after the first, a file ``turn-N`` that says where it ends;
            ``turns`` then holds the first one alone.
        every: steps from one recorded step to the next.
        clean: end after this many applied steps in a row; None goes on.
        command: the process that made the request; once it is gone, the run ends.
        formats: that a forecast is for.
    """

    do: str
    turns: tuple[int, ...]
    overrides: Overrides = field(default_factory=Overrides)
    waits: bool = False
    every: int = 10
    clean: int | None = None
    command: int = 0
    formats: Sequence[str] = ("bfloat16",)

    def write(self, folder: Path) -> None:
        """Write the request into the run's folder."""
        (folder / FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_request(folder: Path) -> RunRequest:
    """Read the request of a run.

    Raises:
        ConfigError: the folder holds none.
    """
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        overrides = Overrides(**found.pop("overrides"))
        return RunRequest(**{**found, "turns": tuple(found["turns"]), "overrides": overrides})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"UNIFIEDAMP_MEASURED_RUN={folder}: it holds no readable {FILE}; the variable is set by unifiedamp's own "
            "commands (unifiedamp compare -- python train.py), unset it"
        ) from error


def permit(folder: Path, number: int, until: int = 0, last: bool = False) -> None:
    """Permit a turn.

    Args:
        folder: of the run.
        number: the turn's.
        until: the step that ends it; 0 for the one that the request names.
        last: whether the run ends with it.
    """
    whole = turn_file(folder, number).with_suffix(".tmp")
    whole.write_text(f"{until} {int(last)}", encoding="utf-8")
    whole.rename(turn_file(folder, number))


def turn_file(folder: Path, number: int) -> Path:
    """Return the file whose existence permits a turn."""
    return folder / f"turn-{number}"
