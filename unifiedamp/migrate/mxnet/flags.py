"""MXNet's ``amp`` behind a flag."""

from __future__ import annotations

from ..branches import backward_only
from ..flags import Old, fold
from ..report import CannotMigrate, Finding
from ..source import Source
from .limits import limits
from .words import calls_of


def without_flags(source: Source) -> tuple[bytes, list[Finding]]:
    """Return the text with one branch left where a flag chose between AMP and none.

    Raises:
        CannotMigrate: the branches are not understood.
    """
    starts, trainers = set(calls_of(source, "init")), set(calls_of(source, "init_trainer"))
    loop = {*calls_of(source, "scale_loss"), *calls_of(source, "unscale")}
    old = Old(
        start=lambda call: call in starts,
        setup=lambda call: call in trainers,
        loop=lambda call: call in loop,
        plain=lambda _body, other: not other or backward_only(source, other),
        off=lambda _statement: False,
    )
    try:
        return fold(source, old)
    except CannotMigrate as error:
        raise CannotMigrate(*sorted([*error.findings, *limits(source, error.findings)])) from None
