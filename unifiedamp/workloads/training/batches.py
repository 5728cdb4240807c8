"""The batches of an epoch: in windows of one optimizer step, counted, and as native tensors."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, nullcontext
from typing import Any

from ...backend.prefetch import convert_batch, is_array
from ...errors import CheckpointError, ConfigError
from ...session import Amp
from ..definition.loading import Loaded


def windows(workload: Loaded, epoch: int, size: int, first: int = 0) -> Iterator[list[Any]]:
    """Yield an epoch's batches in windows of one optimizer step; an incomplete window is dropped.

    Args:
        workload: whose batches they are.
        epoch: from 0.
        size: batches per window.
        first: the number of batches to leave out.

    Raises:
        ConfigError: there is not even one window in the epoch.
        CheckpointError: there are fewer than ``first`` batches.
    """
    batches = workload.batches(epoch)
    # A generator that is left early is closed, so that its files and processes are.
    with closing(batches) if isinstance(batches, Generator) else nullcontext():
        each = iter(batches)
        left_out = sum(1 for _ in itertools.islice(each, first))
        if left_out < first:
            raise CheckpointError(
                f"the checkpoint stops after batch {first} of epoch {epoch + 1}, in which {workload.name} has "
                f"{left_out}: its batches are not those that the run was trained on"
            )
        number = 0
        while len(window := list(itertools.islice(each, size))) == size:
            number += 1
            yield window
    if not number and not first:
        raise ConfigError(_too_few(workload, epoch, size, len(window)))


def _too_few(workload: Loaded, epoch: int, size: int, found: int) -> str:
    if found:
        return (
            f"{workload.name}: batches({epoch}) yields {found}, fewer than one step takes (accumulate_steps {size}): "
            "make the batches or accumulate_steps smaller"
        )
    if epoch:
        return (
            f"{workload.name}: batches({epoch}) yields nothing, batches(0) did: return a new iterable for each epoch, "
            "not one that is used up"
        )
    return f"{workload.name}: batches({epoch}) yields nothing: the data set is empty, or smaller than one batch"


def endless(workload: Loaded, epoch: int = 0) -> Iterator[Any]:
    """Yield the batches of this epoch and those that follow, without end."""
    for number in itertools.count(epoch):
        for window in windows(workload, number, 1):
            yield from window


def window_count(workload: Loaded, epoch: int, size: int) -> int | None:
    """Return the number of windows of an epoch, where its batches have a length."""
    try:
        return len(workload.batches(epoch)) // size  # type: ignore[arg-type]  # TypeError where it has no length
    except TypeError:
        return None


def samples(batch: Any) -> int:
    """Return the samples in a batch: the length of its first array; 1 where it holds none."""
    found = next(iter(arrays(batch)), None)
    return int(found.shape[0]) if found is not None and len(found.shape) else 1


def elements(batch: Any) -> int:
    """Return the elements of the largest array of a batch; 1 where it holds none."""
    sizes = [1]
    for array in arrays(batch):
        size = 1
        for length in array.shape:
            size *= int(length)
        sizes.append(size)
    return max(sizes)


def arrays(batch: Any) -> list[Any]:
    """Return the arrays of a batch, in nested tuples, lists and mappings."""
    found: list[Any] = []
    convert_batch(batch, found.append)
    return [array for array in found if hasattr(array, "shape")]


def native(amp: Amp, batch: Any) -> Any:
    """Return a batch with its arrays as native tensors on the session's device."""
    if is_array(batch):
        return amp.to_native(batch)
    return convert_batch(batch, amp.to_native)


def as_list(epoch: Iterable[Any], most: int) -> list[Any]:
    """Return the first batches, at most this many."""
    return list(itertools.islice(epoch, most))
