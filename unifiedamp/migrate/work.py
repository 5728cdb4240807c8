"""One old API's migration of one file, while it is worked out: what it reads, and what it has found so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import libcst as cst

from .edits import Edits
from .report import CannotMigrate, Finding
from .source import Source, Statement

EXCHANGED = ("DistributedOptimizer", "DistributedTrainer", "DistributedGradientTape")
"""Wrappers of Horovod and BytePS that exchange gradients by themselves, unseen by a session."""

LARC = ("apex.parallel.LARC", "apex.parallel.LARC.LARC", "apex.parallel.larc.LARC")
SWA = ("torchcontrib.optim.SWA", "torchcontrib.optim.swa.SWA")
"""Wrappers around an optimizer in which torch runs no hooks: a session needs those."""


@dataclass(frozen=True)
class Names:
    """What the migrated code calls the session and the package."""

    amp: str = "amp"
    ua: str = "ua"


@dataclass
class Work:
    """What an API's ``plan`` is given, and fills.

    Attributes:
        source: the file.
        names: what the migrated code calls things.
        edits: the changes to the file.
        findings: what is left to the user.
        completed: ``if`` statements whose other branches make a session too by now.
        blockers: why the API's calls must stay as they are, all reasons that were found.
    """

    source: Source
    names: Names
    edits: Edits = field(default_factory=Edits)
    findings: list[Finding] = field(default_factory=list)
    blockers: list[Finding] = field(default_factory=list)
    completed: set[cst.CSTNode] = field(default_factory=set)

    def note(self, node: cst.CSTNode, what: str, write: str) -> None:
        """Leave something at ``node`` to the user."""
        self.findings.append(Finding(self.source.line(node), what, write, path=self.source.path(node)))

    def works(self, node: cst.CSTNode, what: str, write: str) -> None:
        """Say that the code at ``node`` works with a session as it is, and what its callers do."""
        self.findings.append(Finding(self.source.line(node), what, write, path=self.source.path(node), works=True))

    def stop(self, node: cst.CSTNode, what: str, write: str) -> CannotMigrate:
        """Return the error that leaves the API's calls as they are."""
        line, path = self.source.line(node), self.source.path(node)
        return CannotMigrate(Finding(line, " ".join(what.split()), write, blocks=True, path=path))

    def alone(self, call: cst.Call, write: str, what: str | None = None) -> Statement:
        """Return the statement that is this call and nothing else.

        Raises:
            CannotMigrate: something else looks at the call's result.
        """
        if not self.source.is_alone(call):
            raise self.stop(call, self.source.code(call) if what is None else what, write)
        return self.source.statement(call)

    def block(self, node: cst.CSTNode, what: str, write: str) -> None:
        """Note a reason to leave the API's calls as they are, and go on looking for others."""
        self.blockers += self.stop(node, what, write).findings

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Turn a ``CannotMigrate`` inside into a blocker, so that all of a file's are found."""
        try:
            yield
        except CannotMigrate as error:
            self.blockers += error.findings

    def decide(self) -> None:
        """Refuse if anything blocks.

        Raises:
            CannotMigrate: with all blockers.
        """
        if self.blockers:
            raise CannotMigrate(*sorted(set(self.blockers)))
