"""What a command line names: a workload, its settings, and what is known of them before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError, UnsupportedError
from ..workloads.configuration import Settings, Source, read_settings, read_source
from ..workloads.definition.settings import read_assignments
from ..workloads.describe import Description, describe
from . import choices

BATCH_SIZE = "batch_size"
Target = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="FILE.py or FILE.py:NAME, or a .toml or .json file that names it.")
]
OptionalTarget = Annotated[
    str | None,
    typer.Argument(metavar="WORKLOAD", help="FILE.py or FILE.py:NAME, or a .toml or .json file that names it."),
]
Config = Annotated[
    Path | None, typer.Option(help="A .toml or .json file with the tables amp, train and settings, beside FILE.py.")
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the workload; may be repeated.")
]
Epochs = Annotated[int | None, typer.Option(min=1, help="How often to see the whole data.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Stop after this many optimizer steps.")]
RunTimeout = Annotated[float, typer.Option(min=1.0, help="Seconds without progress after which a run counts as hung.")]


class Named:
    """A workload on a command line, described in a separate process: the command itself does not import it.

    Args:
        target, config, assignments: the arguments.
        train: settings of ``[train]``; None counts as not given.
        amp: arguments of the session; likewise.
        timeout: seconds after which importing the file counts as hung.

    Attributes:
        source: the files.
        given: the workload's settings from the command line.
        settings: everything together.
        description: what the file holds.
    """

    def __init__(
        self, target: str, config: Path | None, assignments: Sequence[str] | None, timeout: float,
        train: Mapping[str, Any] | None = None, amp: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.target, self.config = target, config
        self.source: Source = read_source(target, config)
        self.given = read_assignments(assignments or ())
        self.train = {key: value for key, value in (train or {}).items() if value is not None}
        self.settings: Settings = read_settings(self.source, amp=amp, train=self.train, given=self.given)
        self._timeout = timeout
        self._description: Description | None = None

    @property
    def description(self) -> Description:
        """What the file holds; it is imported when this is first asked.

        Raises:
            WorkerError: it cannot be imported, or is no workload.
        """
        if self._description is None:
            self._description = describe(self.source, self.settings.given, self._timeout)
        return self._description

    @property
    def title(self) -> str:
        """The workload and its settings, in words."""
        given = ", ".join(f"{name}={value}" for name, value in self.settings.given.items())
        return self.description.name + (f" ({given})" if given else "")

    @property
    def mode(self) -> str:
        """The mode of ``amp.compile`` that the configuration asks for."""
        return str(self.settings.amp["compile"]) if self.settings.train.compile else "off"

    def backends(self, asked: Sequence[str] | None) -> list[str]:
        """Return the backends to run: those asked for, else those installed that the workload supports.

        Raises:
            UnsupportedError: none is left.
        """
        found, known = choices.backends(asked), self.description.backends
        if asked or known is None:
            return found
        kept = [name for name in found if name in known]
        if not kept:
            raise UnsupportedError(
                f"{self.description.name} is for {', '.join(known)}, and installed is {', '.join(found)}"
            )
        return kept

    def one_backend(self) -> str:
        """Return the backend that is named, or the only one that is installed and supported."""
        asked = self.settings.amp["backend"]
        return choices.one_backend(asked, None if asked else self.description.backends)

    def batch_size(self) -> int | None:
        """Return the workload's own batch size; None where it has no such setting."""
        found = self.description.settings.get(BATCH_SIZE)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def check_batch_sizes(self, option: str) -> None:
        """Check that the workload's batch size can be set.

        Raises:
            ConfigError: it has no setting of that name.
        """
        if BATCH_SIZE not in self.description.settings:
            raise ConfigError(
                f"{option} sets the workload's setting {BATCH_SIZE!r}, which {self.description.name} does not have "
                f"(settings: {', '.join(self.description.settings) or 'none'})"
            )
