"""What a migration found and did, as plain values."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

MIGRATED = "migrated"
NOTHING = "nothing to migrate"
BY_HAND = "by hand"
WORKS = "works as it is"


@dataclass(frozen=True, order=True)
class Finding:
    """A line to review or to rewrite by hand.

    Attributes:
        line: where, from 1, in the file as it was.
        what: what was found there.
        write: what to write by hand, or to look at.
        blocks: the calls of its API were all left as they are because of it.
        path: the file, where several are migrated together.
        works: the code there works with a session as it is; ``write`` says what its callers do.
    """

    line: int
    what: str
    write: str
    blocks: bool = False
    path: str = ""
    works: bool = False


class CannotMigrate(Exception):
    """An API's calls in a file are left as they are: half of them would not run."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__(*findings)
        self.findings = findings


@dataclass(frozen=True)
class Migration:
    """What became of one file.

    Attributes:
        path: as given.
        before: its text.
        after: the migrated text, or the same.
        apis: the APIs that were rewritten.
        findings: lines to review or to rewrite by hand, in order.
    """

    path: str
    before: bytes
    after: bytes
    apis: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = field(default=())

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return self.after != self.before

    @property
    def refused(self) -> bool:
        """Whether calls of an old API were all left as they are because of a line."""
        return any(found.blocks for found in self.findings)

    @property
    def status(self) -> str:
        """One of :data:`MIGRATED`, :data:`BY_HAND`, :data:`WORKS`, :data:`NOTHING`."""
        if self.changed:
            return MIGRATED
        left = WORKS if all(found.works for found in self.findings) else BY_HAND
        return left if self.findings else NOTHING

    def diff(self) -> str:
        """Return the change as a unified diff."""
        old, new = (text.decode("utf-8", "replace").splitlines() for text in (self.before, self.after))
        name = self.path.replace("\\", "/").lstrip("/")
        return "\n".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", lineterm=""))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "path": self.path,
            "status": self.status,
            "apis": list(self.apis),
            "diff": self.diff(),
            "by_hand": [{"line": f.line, "what": f.what, "write": f.write, "blocks": f.blocks} for f in self.findings],
        }
