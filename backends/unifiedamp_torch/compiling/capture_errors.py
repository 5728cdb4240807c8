"""Why a step could not be captured, in one line."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path

import torch

from unifiedamp.backend import errors

from .capture_context import GraphCapturer


def capture_reason(error: BaseException, capturer: GraphCapturer) -> str:
    """Return the user's line that an error came from, and the error's first line."""
    message = str(error).strip().partition("\n")[0] or type(error).__name__
    if "captur" in message and not isinstance(error, errors.AmpError):
        message = f"it makes the host wait for the device, or asks for what a graph cannot hold ({message})"
    line = _user_line(error, capturer)
    return f"{line}: {message}" if line else message


def _user_line(error: BaseException, capturer: GraphCapturer) -> str:
    here = Path(__file__).parents[1]
    folders = [str(each) for each in (Path(torch.__file__).parent, here, Path(errors.__file__).parent)]
    ours = (*folders, inspect.getfile(type(capturer)))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    if not frames:
        return ""
    last = frames[-1]
    return f"{last.filename}:{last.lineno}: `{(last.line or '').strip()}`"
