"""Autocast regions: what layers compute in and whether they train, per thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeAlias

from unifiedamp.backend import Switches

from ..distributed.replica_programs import resume_program
from .tapes import Recording, Tapes

DISABLED = "disabled"
"""Region value: layers compute in the dtype of their variables."""


class _Thread(threading.local):
    """What the innermost region of this thread asks of prepared layers.

    Attributes:
        compute: dtype name in place of a layer's own, :data:`DISABLED`, or None to leave layers as they are.
        training: the ``training`` argument for a prepared model called without one; None outside regions.
        emulates: products of 16-bit tensors are emulated.
        calling: a prepared model is being called, so inner ones follow it.
        recomputing: a layer recomputes, in the backward pass, what it did not keep.
    """

    compute: str | None = None
    training: bool | None = None
    emulates: bool = False
    calling: bool = False
    recomputing: bool = False


thread = _Thread()


Present: TypeAlias = "Callable[[], tuple[str | None, AbstractContextManager[Any] | None]]"


class _Settings:
    """The settings of a region.

    Args:
        tapes: the session's.
        switches: set inside.
        present: returns, when the region is entered, the dtype name, :data:`DISABLED` or None (see ``_Thread``), and a
            further context to enter, None for none: the session's policy may have changed since it was made.
    """

    __slots__ = ("_before", "_compute", "_extra", "_present", "_switches", "_tapes")

    def __init__(self, tapes: Tapes, switches: Switches, present: Present) -> None:
        self._switches = switches
        self._tapes = tapes
        self._present = present


class Region(_Settings):
    """``with amp.autocast()``: records gradients, sets what prepared layers compute in."""

    __slots__ = ("_recording",)

    def __enter__(self) -> None:
        self._compute, self._extra = self._present()
        self._switches.__enter__()
        if self._extra is not None:
            self._extra.__enter__()
        self._before = (thread.compute, thread.training)
        trains = thread.training is not False  # inside an inference, nothing trains or is recorded
        self._recording: Recording | None = None
        try:
            thread.compute, thread.training = self._compute, trains
            if trains:
                resume_program()
                self._recording = self._tapes.enter()
        except BaseException as error:
            self._leave(type(error), error, error.__traceback__)
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            if self._recording is not None:
                self._tapes.exit(self._recording)
        finally:
            self._leave(*exception)

    def _leave(self, *exception: Any) -> None:
        thread.compute, thread.training = self._before
        if self._extra is not None:
            self._extra.__exit__(*exception)
        self._switches.__exit__(*exception)


class Inference(_Settings):
    """``with amp.inference()``: the session's policy, evaluation mode, nothing recorded."""

    __slots__ = ("_stack",)

    def __enter__(self) -> None:
        self._compute, self._extra = self._present()
        self._before = (thread.compute, thread.training)
        self._stack = ExitStack()
        self._stack.enter_context(self._switches)
        recording = self._tapes.here()
        if recording is not None and recording.depth:
            self._stack.enter_context(recording.tape.stop_recording())
        if self._extra is not None:
            self._stack.enter_context(self._extra)
        thread.compute, thread.training = self._compute, False

    def __exit__(self, *exception: Any) -> None:
        thread.compute, thread.training = self._before
        self._stack.__exit__(*exception)
