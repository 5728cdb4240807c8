"""Recording inside captured steps: a graph for calls that are recorded, beside the one for all others."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class CallRecorder(Protocol):
    """What records the calls of captured steps, see ``recording.recorder.TorchRecorder``.

    What is noted while a call is captured are tensors that each replay fills. They are packed into few at the end of
    the capture, since graphs share memory and a later replay may write over them.

    Attributes:
        runs_uncompiled: set once Inductor compiles a step, which runs uncompiled where its layers are recorded and
            :meth:`traces_layers` is false.
    """

    runs_uncompiled: bool

    def form(self) -> Hashable:
        """Return what this call records, equal for calls that record the same; None where it is not recorded."""

    def records_layers(self) -> bool:
        """Return whether the activations of this step are being recorded."""

    def traces_layers(self) -> bool:
        """Return whether the activations of this step are recorded in what Inductor compiles."""

    def tracing(self) -> AbstractContextManager[None]:
        """Around a compiled call of which :meth:`traces_layers` is true."""

    def capturing(self) -> AbstractContextManager[Callable[[], Any]]:
        """Note inside what a captured call computes; yields what packs it, to be called last in the capture."""

    def before_replay(self) -> None:
        """Note what must be known of a step before it runs."""

    def take(self, packed: Any) -> None:
        """Take what a replay has filled."""
