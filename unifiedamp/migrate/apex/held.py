"""Apex's module kept in an attribute, ``args.amp = amp``: the functions that use it there get it by its name."""

from __future__ import annotations

import libcst as cst

from ..edits import Edits
from ..nodes import dotted
from ..report import Finding
from ..source import Source


def by_name(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text in which ``args.amp.scale_loss`` is ``amp.scale_loss``, where the file sets ``args.amp``."""
    edits = Edits()
    for assign in source.of(cst.Assign):
        target = assign.targets[0].target
        held = len(assign.targets) == 1 and source.meaning(assign.value) == "apex.amp"
        if not held or not isinstance(target, cst.Attribute):
            continue
        uses = [use for use in source.uses(dotted(target)) if use is not target]
        around = [source.parents[use] for use in uses]
        if uses and all(isinstance(one, cst.Attribute) for one in around):
            edits.statement(source.statement(assign))
            for use in uses:
                edits.expression(use, source.code(assign.value))
    return edits.apply(source.module).bytes if edits else source.module.bytes, []
