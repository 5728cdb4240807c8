"""Where the policy applies: model creation, autocast regions, inference."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from unifiedamp.backend import Policy, Precision

from .._types import Model
from ..device.tuning import TensorFlowTuner
from ..distributed.strategies import check_scope
from .autocast import Inference, Region
from .modes import Mode
from .tapes import Tapes


class TensorFlowPrecision(Precision):
    """The policy of one session.

    Args:
        mode: how TensorFlow mixes precision.
        tapes: the session's gradient tapes.
        tuner: its process-wide settings hold inside regions and scopes.

    Attributes:
        tapes: the gradient tapes that regions open.
    """

    def __init__(self, mode: Mode, tapes: Tapes, tuner: TensorFlowTuner) -> None:
        self._mode, self.tapes, self._tuner = mode, tapes, tuner

    def scope(self) -> AbstractContextManager[None]:
        """Return the mode's context; an unsupported ``tf.distribute`` strategy raises ``UnsupportedError``."""
        check_scope()
        return self._tuner.scope(self._mode.scope())

    def autocast(self, enabled: bool, policy: Policy | None) -> AbstractContextManager[Any]:
        found = self._mode.region(enabled, policy)  # which may refuse it
        present = functools.partial(self._mode.region, enabled, None) if policy is None else lambda: found
        return Region(self.tapes, self._tuner.switches, present)

    def inference(self, models: Sequence[Model]) -> AbstractContextManager[Any]:
        """Return a region without gradients; Keras passes the mode with each call, so all prepared models evaluate."""
        return Inference(self.tapes, self._tuner.switches, functools.partial(self._mode.region, True, None))
