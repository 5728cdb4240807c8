"""The role of ranks that decide alike."""

from __future__ import annotations

from typing import Any

import torch

from unifiedamp.backend import Distributed, Policy, Unsupported, errors

from .wrapped import AVAILABLE


class TorchDistributed(Distributed):
    """Ranks of ``torch.distributed``: the scaler all-reduces what it finds, so that all ranks skip together."""

    means = "found_inf is all-reduced over torch.distributed"

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def mp_policy(self) -> Any:
        """Return the ``MixedPrecisionPolicy`` for ``fully_shard``: parameters are gathered in the policy's dtype,
        gradients reduced in float32. Outputs keep their dtype; that of the whole model is cast by ``prepare``.

        Raises:
            PolicyNotSupportedError: a policy of float8.
        """
        from torch.distributed.fsdp import MixedPrecisionPolicy

        policy = self._policy
        if policy.compute_dtype == "float8":
            raise errors.PolicyNotSupportedError(
                f"amp.mp_policy: fully_shard cannot gather parameters in float8 (policy {str(policy)!r}); use "
                "'mixed_bfloat16'"
            )
        low = getattr(torch, policy.compute_dtype) if policy.is_mixed else None
        return MixedPrecisionPolicy(param_dtype=low, reduce_dtype=None if low is None else torch.float32)


def distributed_here(policy: Policy) -> TorchDistributed | Unsupported:
    """Return the role; ``policy``: the session's."""
    return TorchDistributed(policy) if AVAILABLE else Unsupported("built without distributed")
