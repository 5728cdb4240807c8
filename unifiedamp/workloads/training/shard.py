"""A batch divided among processes, so that they train together as one process trains on the whole of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ...backend import Ranks
from ...backend.prefetch import convert_batch, is_array
from ...errors import ConfigError
from ...session import Amp
from ..definition.loading import Loaded
from .batches import arrays


def shard(workload: Loaded, batch: Any, ranks: Ranks) -> tuple[Any, float]:
    """Return a process's part of a batch, and the factor of its loss.

    Averaged over the processes, losses with these factors are the mean loss of the whole batch, also where parts differ
    in size. If there are fewer samples than processes, the others get the first sample with factor 0.

    Args:
        workload: whose batch it is; its ``shard`` divides it, if it has one.
        batch: as ``batches`` yields it.
        ranks: the processes.

    Raises:
        ConfigError: the arrays differ in length, or there are none.
    """
    if ranks.size == 1:
        return batch, 1.0
    if workload.has("shard"):
        return _own_part(workload, batch, ranks)
    length = _length(workload, batch)
    start, end = (length * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
    if start == end:
        return _rows(batch, 0, 1), 0.0
    return _rows(batch, start, end), ranks.size * (end - start) / length


def _own_part(workload: Loaded, batch: Any, ranks: Ranks) -> tuple[Any, float]:
    """Return what the workload's ``shard`` gives this process, with the factor of its loss."""
    part = workload.call("shard", batch, ranks.rank, ranks.size)
    share = _share(batch, part)
    if share:
        return part, ranks.size * share
    part = workload.call("shard", batch, 0, ranks.size)
    if not _share(batch, part):
        raise ConfigError(f"{workload.name}: shard(batch, 0, {ranks.size}) returns no rows of a batch that has some")
    return part, 0.0


def _share(batch: Any, part: Any) -> float:
    """Return the part of a batch's rows that ``part`` has, by the first array that was divided; all, if none was."""
    for whole, own in zip(_arrays(batch), _arrays(part), strict=False):
        if len(whole.shape) and len(own.shape) and whole.shape[0] != own.shape[0]:
            return float(own.shape[0]) / float(whole.shape[0])
    return 1.0


def _length(workload: Loaded, batch: Any) -> int:
    found = {int(array.shape[0]) for array in _arrays(batch) if len(array.shape)}
    if len(found) != 1:
        what = f"arrays of {' and '.join(map(str, sorted(found)))} rows" if found else "no array with rows"
        raise ConfigError(
            f"{workload.name}: a batch of {what} cannot be divided among processes; give the workload "
            "shard(batch, rank, ranks), which returns a process's part"
        )
    return found.pop()


def _arrays(batch: Any) -> list[Any]:
    return [batch] if is_array(batch) else arrays(batch)


def _rows(batch: Any, start: int, end: int) -> Any:
    def part(array: Any) -> Any:
        return array[start:end] if len(array.shape) else array

    return part(batch) if is_array(batch) else convert_batch(batch, part)


def check_same_data(workload: Loaded, amp: Amp, epoch: int, batch: Any, ranks: Ranks, count: int | None = None) -> None:
    """Check that all processes got the same first batch of an epoch, and as many batches.

    Args:
        workload, amp, epoch, ranks: of the run.
        batch: the first one.
        count: the number of windows; None where it is not known.

    Raises:
        ConfigError: on every process: the data depend on more than the epoch.
    """
    if ranks.size == 1:
        return
    rank = ranks.differing(f"{count} {_checksum(amp, batch)}")
    if rank is not None:
        raise ConfigError(
            f"{workload.name}: batches({epoch}) yields other samples on rank {rank} than on rank 0, or another number "
            "of batches; each process takes its part of the same batches, so derive their order from the epoch and a "
            "fixed seed"
        )


def on_all(
    windows: Iterable[list[Any]], workload: Loaded, epoch: int, ranks: Ranks, count: int | None
) -> Iterator[list[Any]]:
    """Yield the windows of an epoch as long as every process has one.

    Where batches have no length, the processes tell each other before each window whether they have one: the step of a
    process that is alone in it would wait for ever, or be taken for another operation of the others.

    Args:
        windows, workload, epoch, ranks: of the run.
        count: the number of windows; None where it is not known.

    Raises:
        ConfigError: on every process: the epoch has ended on some of them alone.
    """
    if ranks.size == 1 or count is not None:
        yield from windows
        return
    each = iter(windows)
    while True:
        window = next(each, None)
        rank = ranks.differing("end" if window is None else "window")
        if rank is not None:
            raise ConfigError(
                f"{workload.name}: batches({epoch}) yields another number of batches on rank {rank} than on rank 0; "
                "each process takes its part of the same batches, so all must yield the same"
            )
        if window is None:
            return
        yield window


def _checksum(amp: Amp, batch: Any) -> int:
    found = 0
    for array in _arrays(batch):
        found = zlib.crc32(np.ascontiguousarray(amp.to_numpy(amp.to_native(array))).tobytes(), found)
    return found
