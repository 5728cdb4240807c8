"""Whether a compiled step is being traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .._types import Graph
from ..distributed.replica_programs import ReplicaPrograms, present_programs
from ..precision.tapes import Tapes, current_home
from .native_steps import NativeSteps

INSIDE = "it calls strategy.run inside a loop, a branch or a tf.function"


class StepTracing:
    """The compiled steps of one session that are being traced.

    Args:
        tapes: the session's; what a trace recorded is dropped at its end.
        native_steps: the steps of a trace are reported after each run, from outside.

    Attributes:
        depth: how many compiled steps, nested, are being traced.
        programs: what XLA compiles of the present one for each replica; None where it does not.
    """

    def __init__(self, tapes: Tapes, native_steps: NativeSteps) -> None:
        self._tapes, self._native_steps = tapes, native_steps
        self.depth = 0
        self.programs: ReplicaPrograms | None = None
        self._home: Graph | None = None

    @contextmanager
    def trace(self, programs: ReplicaPrograms | None = None) -> Iterator[None]:
        """Trace a compiled step inside.

        Args:
            programs: what XLA compiles of it for each replica.
        """
        before, self.programs = self.programs, programs
        home, self._home = self._home, current_home()
        self.depth += 1
        try:
            with self._native_steps.following():
                yield
        finally:
            self.depth -= 1
            self.programs, self._home = before, home
            self._tapes.drop()

    def runs_once(self) -> bool:
        """Whether the present Python is traced for several runs: in a loop, a branch or a ``tf.function`` inside."""
        return self.programs is None and current_home() is not self._home

    def enter_program(self) -> None:
        """Note that the calling replica is about to compute gradients."""
        if self.programs is None:
            return
        if present_programs() is self.programs:
            self.programs.resume()
        else:
            self.programs.missed = INSIDE
