"""The operations of the neutral vocabulary, each run once on a small float32 tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

_F = nn.functional


def _image(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, 1, 8, 8)


def _rnn(x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = nn.LSTM(8, 8, device=x.device)(x)[0]
    return output


OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "matmul": lambda x: torch.matmul(x, x),
    "linear": lambda x: _F.linear(x, x),
    "conv": lambda x: _F.conv2d(_image(x), torch.ones(1, 1, 3, 3, device=x.device)),
    "conv_transpose": lambda x: _F.conv_transpose2d(_image(x), torch.ones(1, 1, 3, 3, device=x.device)),
    "attention": lambda x: _F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "embedding": lambda x: _F.embedding(torch.tensor([1, 2], device=x.device), x),
    "rnn": _rnn,
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "layer_norm": lambda x: _F.layer_norm(x, (8,)),
    "batch_norm": lambda x: _F.batch_norm(x, torch.zeros(8, device=x.device), torch.ones(8, device=x.device)),
    "group_norm": lambda x: _F.group_norm(x, 2),
    "relu": torch.relu,
    "gelu": _F.gelu,
    "silu": _F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": _F.softplus,
    "exp": torch.exp,
    "log": torch.log,
    "pow": lambda x: torch.pow(x, 2),
    "rsqrt": torch.rsqrt,
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": torch.prod,
    "cumsum": lambda x: torch.cumsum(x, 0),
    "norm": torch.norm,
    "cross_entropy": lambda x: _F.cross_entropy(x, torch.zeros(8, dtype=torch.long, device=x.device)),
    "mse_loss": lambda x: _F.mse_loss(x, x * 2),
    "l1_loss": lambda x: _F.l1_loss(x, x * 2),
}
"""Operation of the neutral vocabulary → how to run it."""

OF_TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"matmul": torch.matmul, "linear": _F.linear}
"""The same, on two inputs."""


def _low_lstm_runs() -> bool:
    """Return whether torch's own bfloat16 LSTM runs here: oneDNN has none for CPUs without AVX512."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            _rnn(torch.ones(8, 8))
    except RuntimeError:
        return False
    return True


if not _low_lstm_runs() or torch.cuda.is_available():
    del OPERATIONS["rnn"]  # on CUDA torch's autocast casts it to float16 whatever its dtype: prepare wraps the layers
