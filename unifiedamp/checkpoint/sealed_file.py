"""Checkpoint files: JSON metadata and named arrays in one file that is either whole or not there.

The file is an ordinary ``.npz`` (``numpy.load`` opens it): one ``.npy`` member per array and ``metadata.json``. The zip
comment at its end holds the format's version and the SHA-256 of everything before it, so that a truncated, damaged,
foreign or newer file is recognized before anything in it is used. Pickle is never read or written.

A file is made in memory, written beside its target, flushed to the disk and renamed over it: a process killed at any
moment leaves the previous checkpoint or the new one, never a mixture.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import json
import os
import re
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import CheckpointError
from ..output.files import remove_neighbours, replace_whole
from ..training.scale_monitor import ScaleMonitor
from .session_arrays import join_arrays, split_arrays

if TYPE_CHECKING:
    import numpy as np

VERSION = 1
METADATA = "metadata.json"
SEAL = re.compile(rb"unifiedamp checkpoint (\d{4}) sha256 ([0-9a-f]{64})")
SEAL_LENGTH = len("unifiedamp checkpoint 0000 sha256 ") + 64
STORABLE_KINDS = "biufcSU"
STALE_SECONDS = 3600


class Session(Protocol):
    """The part of ``Amp`` that a checkpoint needs."""

    scale_monitor: ScaleMonitor

    def state_dict(self) -> dict[str, Any]:
        """Return the session's state, plain JSON values."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds.

    Attributes:
        meta: the metadata, plain JSON values; ``meta["amp"]`` is the session's state where one was saved,
            its averages included.
        arrays: name → array, in the order they were saved in.
    """

    meta: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]


def save_checkpoint(
    path: str | os.PathLike[str], meta: Mapping[str, Any], arrays: Mapping[str, Any], amp: Session | None = None
) -> None:
    """Write a checkpoint; ``path`` holds the old file or the new one, never a part.

    Args:
        path: the file; its directory is made when missing.
        meta: plain JSON values (no inf or nan), with text for keys.
        arrays: name → array of numbers or text; made to numpy arrays of the same dtype.
        amp: its ``state_dict()`` becomes ``meta["amp"]`` (its averages become arrays ``amp.ema.<n>.<name>``, its
            compensations ``amp.update.<name>``, its amax histories ``amp.amax_history.<layer>``), and its
            observers' ``on_checkpoint`` is called.

    Raises:
        CheckpointError: something cannot be stored, or the file cannot be written. The previous file is kept.
    """
    target = Path(path)
    content = _pack(*_with_session(meta, arrays, amp))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, content)
    except OSError as error:
        raise CheckpointError(f"checkpoint {target} cannot be written: {error.strerror or error}") from error
    if amp is not None and amp.scale_monitor.hooks is not None:
        amp.scale_monitor.hooks.on_checkpoint(path=str(target))


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read and check a checkpoint wholly.

    Args:
        path: a file that :func:`save_checkpoint` wrote.

    Raises:
        CheckpointError: it is missing, truncated, damaged, foreign, or from a newer version.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error.strerror or error}") from error
    _check_seal(content, path)
    try:
        return _unpack(content)
    except Exception as error:  # sealed by us yet unreadable: report it, whatever zipfile, json or numpy call it
        raise CheckpointError(f"checkpoint {path} is sealed but cannot be read: {error}") from error


def _with_session(
    meta: Mapping[str, Any], arrays: Mapping[str, Any], amp: Session | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata and arrays with those of a session."""
    if amp is None:
        return dict(meta), dict(arrays)
    state, own = split_arrays(amp.state_dict())
    taken = [name for name in own if name in arrays]
    if taken:
        raise CheckpointError(
            f"an array cannot be stored under the name {taken[0]!r}: it is one of the session's state"
        )
    return {**meta, "amp": state}, {**arrays, **own}


def _pack(meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    import numpy as np

    write_array: Any = np.lib.format.write_array
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(METADATA, _to_json(meta))
        for name, value in arrays.items():
            array = np.asarray(value)
            if not isinstance(name, str) or not name or name == METADATA:
                raise CheckpointError(f"an array cannot be stored under the name {name!r}")
            if array.dtype.kind not in STORABLE_KINDS:
                raise CheckpointError(
                    f"array {name!r} of dtype {array.dtype} cannot be stored: convert it to a plain numpy dtype"
                )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                write_array(member, array, allow_pickle=False)
        # The comment's length lies before the comment, so it must be known while the rest is hashed.
        archive.comment = b" " * SEAL_LENGTH
    body = buffer.getvalue()[:-SEAL_LENGTH]
    return body + f"unifiedamp checkpoint {VERSION:04d} sha256 {hashlib.sha256(body).hexdigest()}".encode()


def _to_json(meta: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(meta, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the checkpoint's metadata must be plain JSON values: {error}") from error
    if json.loads(text) != meta:
        raise CheckpointError("the checkpoint's metadata would not come back as it is: use text keys and lists only")
    return text


def _replace(target: Path, content: bytes) -> None:
    _remove_stale(target)
    replace_whole(target, content)
    _sync_directory(target.parent)


def _remove_stale(target: Path) -> None:
    """Remove what killed writers left; a living one on another machine needs far less time than ``STALE_SECONDS``."""
    remove_neighbours(target)
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()


def _sync_directory(directory: Path) -> None:
    # The rename itself is durable only once its directory is; Windows has no such call and no such need.
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_seal(content: bytes, path: object) -> None:
    found = SEAL.fullmatch(content[-SEAL_LENGTH:])
    if found is None:
        kind = "truncated" if content.startswith(b"PK\x03\x04") else "not a checkpoint of unifiedamp"
        raise CheckpointError(f"checkpoint {path} is {kind if content else 'empty'}; nothing was loaded")
    if hashlib.sha256(content[:-SEAL_LENGTH]).hexdigest().encode() != found[2]:
        raise CheckpointError(f"checkpoint {path} is damaged: its checksum does not match; nothing was loaded")
    version = int(found[1])
    if version > VERSION:
        raise CheckpointError(
            f"checkpoint {path} has version {version}; this unifiedamp reads up to {VERSION}: update it"
        )


def _unpack(content: bytes) -> Checkpoint:
    import numpy as np

    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        meta = json.loads(archive[METADATA])
        arrays = {name: archive[name] for name in archive.files if name != METADATA}
    if not isinstance(meta, dict):
        raise ValueError(f"{METADATA} holds {type(meta).__name__}, not an object")
    if "amp" in meta:
        meta["amp"] = join_arrays(meta["amp"], arrays)
    return Checkpoint(meta, arrays)
