"""Batches in, results out, and the backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from unifiedamp.backend import errors

from .native import BFLOAT16, NDArray, base, call, from_numpy, mx


def to_native(array: Any, context: Any) -> Any:
    """Return ``array`` (numpy, DLPack or anything numpy reads) as an array on ``context``, its dtype kept."""
    if isinstance(array, NDArray):
        return array
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__"):
        array = np.from_dlpack(array)
    return from_numpy(np.asarray(array), context)


def to_numpy(tensor: Any) -> Any:
    """Return an array as numpy; bfloat16 comes back as float32."""
    if not isinstance(tensor, NDArray):
        return np.asarray(tensor)
    if tensor.dtype == BFLOAT16:
        tensor = call("amp_cast", [tensor], dtype="float32")
    return tensor.asnumpy()


def backward(losses: list[Any], heads: list[Any] | None) -> None:
    """Differentiate the losses, beginning with the heads (None: ones).

    Raises:
        LossError: a loss does not depend on anything that was recorded.
    """
    try:
        mx.autograd.backward(losses, heads)
    except base.MXNetError as error:
        if not any(text in str(error) for text in _NO_GRAPH):
            raise
        raise errors.LossError(
            "amp.scale_loss: the loss is not connected to any parameter (any more). Compute it from the model's output "
            "inside 'with amp.autocast():'. MXNet frees a graph when its gradients have been taken, and with it what "
            "other losses share with it, inputs included: add the losses, or compute the second one afterwards"
        ) from error


_NO_GRAPH = ("Cannot differentiate node", "The any container is empty")
"""What MXNet says when a loss has no graph, and when part of its graph was freed."""
