"""The role that changes the policy of a running session: layers get other dtype policies, steps other traces."""

from __future__ import annotations

from collections.abc import Sequence

from unifiedamp.backend import Policy, PolicySwitcher, SessionSpec

from .._types import Model
from .keras_mode import KerasMode


class TensorFlowPolicySwitcher(PolicySwitcher):
    """Prepared layers follow the policy. Traces are kept by policy; ``fit`` makes its train function anew.

    Args:
        spec: the session's, which the other roles read the policy from.
        mode: the session's.
        models: the prepared ones; the list may grow.
    """

    means = "layer.dtype_policy; one trace under each policy"

    def __init__(self, spec: SessionSpec, mode: KerasMode, models: Sequence[Model]) -> None:
        self._spec, self._mode, self._models = spec, mode, models

    def switch(self, policy: Policy) -> None:
        self._spec.policy = policy
        self._mode.follow_policy(self._models)
