"""What is rewritten before a file is planned: flags that choose AMP, names that hold it, regions that train."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import ModuleType

from . import apex, keras, mxnet, torch_amp
from .checked import old_lines
from .report import Finding
from .source import Source

Fold = tuple[ModuleType, Callable[[Source], tuple[bytes, list[Finding]]]]
TORCH_FOLDS: tuple[Fold, ...] = (
    (apex, apex.by_name),
    (apex, apex.by_keyword),
    (torch_amp, torch_amp.by_factory),
    (torch_amp, torch_amp.by_choice),
    (torch_amp, torch_amp.ended_before_backward),
)
FOLDS: tuple[Fold, ...] = (
    *TORCH_FOLDS,
    (torch_amp, torch_amp.by_given_optimizer),
    (keras, keras.by_policy_in_force),
    (keras, keras.without_flags),
    (mxnet, mxnet.without_flags),
)
_NESTED = 4  # flags, one under the other


def without_flags(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text in which no flag chooses AMP, no attribute holds it and no region trains, and notes.

    Raises:
        CannotMigrate: branches with and without AMP differ in more than AMP.
    """
    return _folded(source, FOLDS, always=False)


def without_names(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text of one of several files, which may use torch's AMP or Apex without a call, and notes."""
    return _folded(source, TORCH_FOLDS, always=True)


def _folded(source: Source, folds: Sequence[Fold], *, always: bool) -> tuple[bytes, list[Finding]]:
    before, found = source.text, []
    for api, fold in folds:
        for _ in range(_NESTED):
            folded, notes = fold(source) if always or api.found(source) else (source.text, [])
            found += as_before(notes, before, source.text) if source.text != before else notes
            if folded == source.text:
                break
            source = Source(folded)
    return source.text, found


def as_before(findings: Iterable[Finding], before: bytes, after: bytes) -> list[Finding]:
    """Return findings of a changed text with the lines of the text as it was."""
    lines = old_lines(before, after)
    return [replace(each, line=lines.get(each.line, 1)) for each in findings]
