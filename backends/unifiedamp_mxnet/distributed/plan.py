"""The rows of ``amp.explain()`` on contexts and workers that train together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unifiedamp.backend import PlanRow, SessionSpec

from .._types import Context, Trainer
from .distributed import is_distributed, kvstore_name


def rank_rows(trainers: Iterable[Trainer], spec: SessionSpec) -> list[PlanRow]:
    """Return who trains together, and in which dtype gradients are summed; nothing for one context and one process.

    Args:
        trainers: the prepared ones.
        spec: the session's.
    """
    shared = next((each for each in trainers if len(each._updaters) > 1 or is_distributed(each)), None)
    if shared is None and spec.reduce_dtype is None:
        return []
    rows = [] if shared is None else _group_rows(shared)
    note = "over the contexts of a Trainer, before the check; nothing is summed on one context"
    if spec.reduce_dtype is None:
        value, native = "reduced in the dtype of each gradient", "kvstore.pushpull"
    else:
        value, native = f"reduced in {spec.reduce_dtype}", "amp_cast, kvstore.pushpull, amp_cast"
    return [*rows, PlanRow("gradients of ranks", value, native, note=note)]


def _group_rows(trainer: Trainer) -> list[PlanRow]:
    contexts, store = [str(each) for each in contexts_of(trainer)], trainer._kvstore
    workers = getattr(store, "num_workers", 1) if store else 1
    size, native = str(len(contexts) * workers), "contexts of the Trainer * kvstore.num_workers"
    each = "" if workers == 1 else f" of each of {workers} workers"
    if is_distributed(trainer) and not store:
        size, each = "not known yet", " of each worker"  # the kvstore is made with the first step
    return [
        PlanRow("world size", size, native, note="contexts" if workers == 1 else "contexts of all workers"),
        PlanRow("process group", ", ".join(contexts) + each, f"kvstore {kvstore_name(trainer)!r}"),
    ]


def contexts_of(trainer: Trainer) -> Sequence[Context]:
    """Return a Trainer's contexts, which MXNet 2 calls devices."""
    found: Sequence[Context] = vars(trainer)["_contexts" if "_contexts" in vars(trainer) else "_devices"]
    return found
