"""What a session's ``Tuning`` becomes: rows of ``amp.explain()``, and warnings."""

from __future__ import annotations

from collections.abc import Iterator

from ..backend import Backend, PlanRow, Tuning
from ..errors import TuningWarning


def tuning_rows(backend: Backend, tuning: Tuning) -> Iterator[PlanRow]:
    """Yield the rows of ``amp.explain()``: each requested item, what the models show, debugging modes that are on."""
    yield PlanRow("tuning", str(tuning), "see the rows below" if tuning else "nothing is changed")
    rows = {row.setting: row for row in backend.tuner.rows()} if tuning and backend.tuner else {}
    capabilities = backend.capabilities()
    for item, value in tuning.asked().items():
        setting, support = f"tuning.{item}", capabilities.tunes(item)
        row = rows.pop(setting, None)
        if not support:
            yield PlanRow(setting, value, "none", "no effect", f"no effect here: {support.reason}")
        else:
            yield row or PlanRow(setting, value, support.reason)
    yield from rows.values()
    for mode, cost in _debug_modes(backend).items():
        yield PlanRow("debugging", "on", mode, note=cost)


def warn_unsupported(backend: Backend, tuning: Tuning) -> None:
    """Warn of the items that have no effect here, unless ``tuning.best_effort`` is on."""
    if tuning.best_effort:
        return
    capabilities = backend.capabilities()
    for item in tuning.asked():
        support = capabilities.tunes(item)
        if not support:
            backend.spec.warn(f"tuning.{item} has no effect here: {support.reason}", TuningWarning)


def warn_debug_modes(backend: Backend, tuning: Tuning) -> None:
    """Warn of debugging modes that are on, where a tuning is set."""
    for mode, cost in _debug_modes(backend).items() if tuning else ():
        backend.spec.warn(f"{mode} is on, left over from debugging? {cost}", TuningWarning)


def _debug_modes(backend: Backend) -> dict[str, str]:
    return backend.tuner.debug_modes() if backend.tuner else {}
