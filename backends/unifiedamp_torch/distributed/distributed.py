"""The role of ranks that decide alike."""

from __future__ import annotations

from typing import Any

import torch

from unifiedamp.backend import Distributed, ScaleState, SessionSpec, Unsupported, errors

from .loaded import LoadedStates
from .ranks import TrainingRanks
from .wrapped import AVAILABLE


class TorchDistributed(Distributed):
    """Ranks of ``torch.distributed``: the scaler all-reduces what it finds, so that all ranks skip together."""

    means = "found_inf is all-reduced over torch.distributed"

    def __init__(self, spec: SessionSpec, ranks: TrainingRanks, loaded: LoadedStates) -> None:
        self._policy, self._ranks, self._reduce_dtype = spec.policy, ranks, spec.reduce_dtype
        self._loaded = loaded
        self._scheduled = len(spec.policies) > 1
        self._last = True
        # Master weights take each micro-batch's gradients from the model, so these must be reduced.
        self.defers_reduction = not spec.master_weights

    def begin_micro_batch(self, last: bool) -> None:
        self._last = last
        self._ranks.reduce_in_backward(last)

    def end_micro_batch(self, last: bool) -> None:
        self._ranks.reduce_in_backward(True)
        if last and not self._last:
            raise errors.StepOrderError(
                "amp.step: the forward pass of this window's last micro-batch began before amp.step had ended the "
                "micro-batch before it, so its gradients were not reduced over the ranks: enter amp.autocast() for a "
                "micro-batch after amp.step(optimizer) of the one before; amp.discard_step(optimizer) drops this window"
            )

    def state_loaded(self, state: ScaleState) -> None:
        self._loaded.note(state)

    def check_skips(self, state: ScaleState) -> None:
        self._loaded.check_skips(state)

    def mp_policy(self) -> Any:
        """Return the ``MixedPrecisionPolicy`` for ``fully_shard``: parameters are gathered in the policy's dtype,
        gradients reduced in ``reduce_dtype``, else in float32. Outputs keep their dtype; that of the whole model is
        cast by ``prepare``.

        Raises:
            PolicyNotSupportedError: a policy of float8.
            UnsupportedError: the session has a schedule.
        """
        if self._scheduled:
            raise errors.UnsupportedError(
                "amp.mp_policy: fully_shard casts by one policy throughout, and this session has a schedule: leave "
                "mp_policy out, so that autocast casts inside the shards"
            )
        from torch.distributed.fsdp import MixedPrecisionPolicy

        policy = self._policy
        if policy.compute_dtype == "float8":
            raise errors.PolicyNotSupportedError(
                f"amp.mp_policy: fully_shard cannot gather parameters in float8 (policy {str(policy)!r}); use "
                "'mixed_bfloat16'"
            )
        low = getattr(torch, policy.compute_dtype) if policy.is_mixed else None
        reduced = self._reduce_dtype or (None if low is None else "float32")
        return MixedPrecisionPolicy(param_dtype=low, reduce_dtype=None if reduced is None else getattr(torch, reduced))


def distributed_here(spec: SessionSpec, ranks: TrainingRanks, loaded: LoadedStates) -> TorchDistributed | Unsupported:
    """Return the role.

    Args:
        spec: the session's.
        ranks: those that train together.
        loaded: compares the states that they load.
    """
    return TorchDistributed(spec, ranks, loaded) if AVAILABLE else Unsupported("built without distributed")
