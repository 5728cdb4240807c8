"""``amp.explain()``: the resolved plan as rows, and as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..backend import Backend, PlanRow, Tuning
from ..loss_scale import LossScale
from ..notebook import table_html
from ..policy import Policy
from .tuning import tuning_rows

NO_FLOAT8_ATTENTION = "no framework has a float8 product of attention with gradients"

COLUMNS = ("setting", "value", "native", "effect", "note")


@dataclass(frozen=True)
class Plan:
    """What a session will do, row by row. ``str(plan)`` is a table; iterate for :class:`PlanRow` objects."""

    backend: str
    rows: tuple[PlanRow, ...]

    @classmethod
    def of(
        cls,
        backend: Backend,
        policy: Policy,
        loss_scale: LossScale,
        tuning: Tuning,
        origins: Mapping[str, str],
        step: int = 0,
    ) -> Plan:
        """Put core's own rows before the backend's, and those of tuning after them.

        Args:
            backend: the session's.
            policy: the one in force, which the backend's rows are about.
            loss_scale, tuning: the session's settings.
            origins: where settings came from.
            step: iterations that have ended, for the schedule.
        """
        device = backend.capabilities().device
        core = (
            PlanRow(
                "backend", f"{backend.name} on {device}", type(backend).__module__, note=origins.get("backend", "")
            ),
            PlanRow("policy", str(policy), "see the rows below", note=origins.get("policy", "")),
            PlanRow("loss_scale", str(loss_scale), "see the rows below", note=origins.get("loss_scale", "")),
        )
        core_rows = (*core, *_schedule_rows(backend, step), *_attention_rows(policy))
        return cls(backend.name, core_rows + tuple(backend.explain()) + tuple(tuning_rows(backend, tuning)))

    def __iter__(self) -> Iterator[PlanRow]:
        return iter(self.rows)

    def row(self, setting: str) -> PlanRow:
        """Return the row of one setting.

        Raises:
            KeyError: there is none.
        """
        for row in self.rows:
            if row.setting == setting:
                return row
        raise KeyError(setting)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"backend": self.backend, "rows": [asdict(row) for row in self.rows]}

    def __repr__(self) -> str:
        return f"<Plan of {self.backend}: {len(self.rows)} rows; print it, or iterate over them>"

    def _repr_html_(self) -> str:
        return table_html(f"Plan of {self.backend}", self._cells(), COLUMNS)

    def _cells(self) -> list[tuple[str, ...]]:
        return [(row.setting, row.value, row.native, row.effect, row.note) for row in self.rows]

    def __str__(self) -> str:
        cells = [COLUMNS, *self._cells()]
        widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        return "\n".join(line.rstrip() for line in [lines[0], "-" * sum(widths), *lines[1:]])


def _schedule_rows(backend: Backend, step: int) -> list[PlanRow]:
    """Return a row for each policy of the schedule, with the iteration at which it comes into force."""
    schedule = backend.spec.schedule
    if schedule is None:
        return []
    of, rows = "" if schedule.total_steps is None else f" of {schedule.total_steps}", []
    for (begin, policy), written in zip(schedule.entries, schedule.written, strict=True):
        end = schedule.next_switch(begin)
        notes = [f"written {written!r}"] if "%" in written else []
        notes += ["in force"] if begin <= step and (end is None or step < end) else []
        until = f"iterations {begin} to {end - 1}" if end is not None else f"from iteration {begin}{of} on"
        rows.append(PlanRow(f"schedule.{begin}", str(policy), until, note=", ".join(notes)))
    return rows


def _attention_rows(policy: Policy) -> Iterator[PlanRow]:
    if policy.compute_dtype == "float8":
        yield PlanRow("float8 attention", "bfloat16", "as in mixed_bfloat16", "unavailable", NO_FLOAT8_ATTENTION)
