"""What was named on the command line: one file, or a folder, in which files that share a session change together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import AmpError
from . import files, together
from .report import BY_HAND, MIGRATED, NOTHING, WORKS, Migration


class Batch:
    """The migrations of one file or folder.

    Args:
        path: that file or folder.
        to: "amp" or "compat"; see ``migrate``.

    Attributes:
        done: the migration of each file that could be read.
        errors: a line for each that could not be read or written.
    """

    def __init__(self, path: Path, to: str = "amp") -> None:
        self._path, self._to = path, to
        self._folder = path.is_dir()
        self.done: list[Migration] = []
        self.errors: list[str] = []
        self._written: set[str] = set()
        paths = files.in_folder(path) if self._folder else [path]
        contents = dict(files.readable(paths)) if self._folder and to == "amp" else {}
        shared, others = self._shared(contents), together.imported(contents) | together.inheriting(contents)
        for each in paths:
            try:
                one = shared.get(str(each)) or files.migrate_file(each, to, halves=str(each) not in others)
                self.done.append(one)
            except AmpError as error:
                self._failed(error)
        if self._folder:
            self.done = together.hold_back(self.done)

    def _shared(self, contents: Mapping[str, bytes]) -> dict[str, Migration]:
        """Return path -> migration of the files that share a session with others."""
        done = [one for group in together.sharing(contents) for one in self._group(contents, group)]
        return {one.path: one for one in done}

    def _group(self, contents: Mapping[str, bytes], group: Sequence[str]) -> list[Migration]:
        try:
            return together.migrate_together({path: contents[path] for path in group})
        except AmpError:
            return []  # each file alone says why

    def write(self) -> None:
        """Write what changed; nothing of a folder in which a file cannot be read or written."""
        changed = [one for one in self.done if one.changed]
        if self._folder and self.errors:
            return
        for place, one in enumerate(changed):
            try:
                files.write(one)
                self._written.add(one.path)
            except AmpError as error:
                self._failed(error)
                if self._folder:
                    self._restore(changed[:place])
                    return

    def _restore(self, written: list[Migration]) -> None:
        """Put back the files of a folder that were written before one could not be."""
        for one in written:
            files.write(Migration(one.path, one.after, one.before))
            self._written.discard(one.path)

    def _failed(self, error: AmpError) -> None:
        self.errors.append(" ".join(str(error).split()))

    # -- what is said of it --------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """Yield the lines to print; in a folder, none for files with nothing to migrate."""
        for one in self.done:
            if not self._folder or one.status != NOTHING:
                yield from self._lines(one)
        if self._folder:
            yield self._totals()
        if self._folder and self.errors and any(one.changed for one in self.done):
            yield f"{self._path}: nothing is written while files in it cannot be read or written"
        refused = [one.path for one in self.done if one.refused and self._compat_works(one)]
        if refused:
            what = str(self._path) if self._folder else refused[0]
            yield f"{what}: to keep the old calls, over unifiedamp: unifiedamp migrate --to compat {what}"

    def _lines(self, one: Migration) -> Iterator[str]:
        doing = "written" if one.path in self._written else one.status
        yield f"{one.path}: {doing}{' (' + ', '.join(one.apis) + ')' if one.apis else ''}"
        for found in one.findings:
            yield f"{one.path}:{found.line}: {found.what}: {found.write}"
        for line in dict.fromkeys(found.line for found in one.findings if found.blocks):
            yield f"{one.path}:{line}: because of it, this API's other calls are left as they are too"

    def _totals(self) -> str:
        counts = Counter(one.status for one in self.done)
        changed = "written" if self._written else MIGRATED
        parts = [f"{counts[MIGRATED]} {changed}", f"{counts[BY_HAND]} by hand", f"{counts[NOTHING]} with nothing to do"]
        if counts[WORKS]:
            parts.insert(1, f"{counts[WORKS]} that work as they are")
        if self.errors:
            parts.append(f"{len(self.errors)} with errors")
        return f"{self._path}: {len(self.done) + len(self.errors)} files: {', '.join(parts)}"

    def _compat_works(self, one: Migration) -> bool:
        if self._to == "compat":
            return False
        try:
            return files.migrate_file(Path(one.path), "compat").changed
        except AmpError:
            return False

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return JSON values of the files."""
        return [
            one.to_dict() | {"written": one.path in self._written, "compat": one.refused and self._compat_works(one)}
            for one in self.done
            if not self._folder or one.status != NOTHING
        ]
