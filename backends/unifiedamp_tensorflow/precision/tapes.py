"""Gradient tapes: autocast opens one, scale_loss differentiates through it.

One tape serves the regions of an iteration, resumed by each, so that a loss may be built from several regions, and
from what a region computed before the backward pass of another loss. It is dropped when the iteration or the
micro-batch ends. Executing eagerly, it holds what the regions computed: after :data:`KEPT_REGIONS` of them the next one
gets a fresh tape (an evaluation loop under ``autocast`` must not pile up). In a graph it holds symbols.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import tensorflow as tf

from .._types import Gradient, Graph, Tensor, Variable

KEPT_REGIONS = 8


def current_home() -> Graph | None:
    """Return the graph being traced, or None when executing eagerly."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def in_dataset_loop() -> bool:
    """Whether the graph, or one around it, is a function of a dataset; TensorFlow names them so."""
    graph = current_home()
    while graph is not None and not str(getattr(graph, "name", "")).startswith("Dataset_"):
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


class Recording:
    """A tape and where it records.

    Attributes:
        home: the graph it was opened in; None for eager.
        outer: the recording that was open around it, in another graph.
        depth: regions open now.
        regions: regions recorded so far.
        passes: backward passes made so far.
        dropped: it is to be dropped once no region is open.
        ended: an iteration ended since the first region: what came before it is not needed.
        forgot: regions before this tape's were forgotten, and not each of them had a backward pass.
    """

    __slots__ = ("depth", "dropped", "ended", "forgot", "home", "outer", "passes", "regions", "tape")

    def __init__(self, home: Graph | None, outer: Recording | None, forgot: bool) -> None:
        self.tape = tf.GradientTape(persistent=True)
        self.home = home
        self.outer = outer
        self.depth = self.regions = self.passes = 0
        self.dropped = self.ended = False
        self.forgot = forgot

    def full(self) -> bool:
        """Whether the next region needs a fresh tape."""
        return self.depth == 0 and self.home is None and self.regions >= KEPT_REGIONS

    def needed(self) -> bool:
        """Whether a loss of the present iteration may come from it."""
        return self.forgot or (self.passes < self.regions and not self.ended)


class Tapes(threading.local):
    """The recordings of one session in one thread."""

    current: Recording | None = None

    def enter(self) -> Recording:
        """Open a region; return the recording to hand to :meth:`exit`."""
        home, recording = current_home(), self.current
        if recording is None or recording.home is not home:
            outer = recording if recording is not None and recording.depth else None
            recording = self.current = Recording(home, outer, forgot=False)
        elif recording.full():
            recording = self.current = Recording(home, recording.outer, forgot=recording.needed())
        if recording.depth == 0:
            recording.regions += 1
            recording.tape.__enter__()
        recording.depth += 1
        return recording

    def exit(self, recording: Recording) -> None:
        """Close a region."""
        recording.depth -= 1
        if recording.depth == 0:
            recording.tape.__exit__(None, None, None)
            if recording.dropped and recording is self.current:
                self.drop()

    def drop(self) -> None:
        """Forget what was recorded; inside a region, when it ends."""
        recording = self.current
        if recording is None:
            return
        if recording.depth == 0:
            self.current = recording.outer
        elif recording.home is current_home():  # a trace that ends inside a region drops nothing of the region's
            recording.dropped = True

    def end_iteration(self) -> None:
        """Note that losses to come need nothing of the regions so far, or of the latest ones alone."""
        if self.current is not None:
            self.current.ended, self.current.forgot = True, False

    def here(self) -> Recording | None:
        """Return the recording made in the graph that is current now."""
        home, recording = current_home(), self.current
        while recording is not None and recording.home is not home:
            recording = recording.outer
        return recording

    def gradient(
        self, loss: Tensor, variables: Sequence[Variable], seed: Tensor | None
    ) -> Sequence[Gradient | None] | None:
        """Return the gradients of ``loss``, None for a variable it does not depend on; None without a recording."""
        recording = self.here()
        if recording is None:
            return None
        recording.passes += 1
        if recording.depth == 0:
            return recording.tape.gradient(loss, variables, output_gradients=seed)
        with recording.tape.stop_recording():
            return recording.tape.gradient(loss, variables, output_gradients=seed)

    def knows(self, loss: Tensor) -> bool:
        """Whether ``loss`` depends on any trainable variable that was used under the tape."""
        recording = self.here()
        if recording is None:
            return False
        watched = list(recording.tape.watched_variables())
        return any(gradient is not None for gradient in self.gradient(loss, watched, None) or ())
