"""``amp.compile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unifiedamp.backend import Compiler, StepOrderState

from ..device.device import TensorFlowDevice
from ..device.tuning import compiles_with_xla
from .compiled_step import CompileContext, CompiledStep


class TensorFlowCompiler(Compiler):
    """Compiles the steps of one session.

    Args:
        context: the session's part.
        device: the session's; reading the loss scale may wait once a step is compiled.
    """

    means = "tf.function, by XLA with compile='max' or backend_options.tensorflow.xla"
    replays_traces = True

    def __init__(self, context: CompileContext, device: TensorFlowDevice) -> None:
        self._context, self._device = context, device

    def compile(self, fn: Callable[..., Any], order: StepOrderState, mode: str) -> Callable[..., Any]:
        """Return the step as a ``tf.function``, compiled by XLA in mode "max" or by ``backend_options.tensorflow.xla``.

        Over several replicas XLA compiles the forward and backward pass of each. A step that XLA cannot compile (graph
        rewrite) raises ``UnsupportedError`` when first called.
        """
        self._device.expect_compiled_steps()
        return CompiledStep(fn, order, self._context, compiles_with_xla(self._context.spec, mode))

    def tracing(self) -> bool:
        return not tf.executing_eagerly()
