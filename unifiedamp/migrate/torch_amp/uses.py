"""The calls on a ``GradScaler``, and the optimizers that it steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import libcst as cst

from ..source import Statement
from ..work import Work
from .scaler import Scaler


class Use(NamedTuple):
    """A call of a scaler's ``method``, where the session is called ``amp``."""

    call: cst.Call
    method: str
    amp: str


@dataclass(frozen=True)
class Uses:
    """All calls on a scaler.

    Attributes:
        all: name by name.
        optimizers: the code of those it steps, each once.
    """

    all: Sequence[Use]
    optimizers: Sequence[str]

    def of(self, *methods: str) -> list[cst.Call]:
        """Return the calls of these methods."""
        return [use.call for use in self.all if use.method in methods]


def find_uses(work: Work, scaler: Scaler) -> Uses:
    """Return the calls on a scaler.

    Raises:
        CannotMigrate: something else is done with it, or it never steps.
    """
    found = list(_uses(work, scaler))
    optimizers = [optimizer_of(work, use.call) for use in found if use.method == "step"]
    if not optimizers:
        raise work.stop(scaler.made, "a GradScaler whose step is never called",
                        "migrate the file that calls scaler.step together with this one, by hand")  # fmt: skip
    return Uses(found, list(dict.fromkeys(optimizers)))


def optimizer_of(work: Work, call: cst.Call) -> str:
    """Return the code of the optimizer that a call is given.

    Raises:
        CannotMigrate: it is given something else.
    """
    name = work.source.code(call.args[0].value) if len(call.args) == 1 else ""
    if not name.replace(".", "").replace("_", "").isalnum():
        raise work.stop(call, work.source.code(call), "`amp.step(optimizer)` takes one prepared optimizer")
    return name


def statement_of(work: Work, call: cst.Call) -> Statement:
    """Return the statement that a call is.

    Raises:
        CannotMigrate: something else looks at its result.
    """
    write = "`amp.step(optimizer)` returns a StepResult: `.applied` says whether it stepped"
    return work.alone(call, write, f"the result of {work.source.code(call)} is used")


def _uses(work: Work, scaler: Scaler) -> Iterator[Use]:
    source = work.source
    for old, new in scaler.names.items():
        for use in source.uses(old):
            attribute = source.parents[use]
            call = source.parents.get(attribute)
            if not isinstance(attribute, cst.Attribute):
                continue
            if not isinstance(call, cst.Call) or call.func is not attribute:
                raise work.stop(use, f"{source.code(attribute)}", "the session has no such attribute")
            yield Use(call, attribute.attr.value, new)
