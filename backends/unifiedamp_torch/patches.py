"""Changes that the backend makes to torch's own objects, and how they are taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import functional

Attention = Callable[..., Any]
"""``torch.nn.functional.scaled_dot_product_attention``, or what stands for it."""


def replace_attention(count: Callable[..., Any]) -> Callable[[], None]:
    """Make calls of ``torch.nn.functional.scaled_dot_product_attention`` go through ``count``; return what ends that.

    Args:
        count: called with torch's own function and the arguments of each call.
    """
    before: Any = functional.scaled_dot_product_attention
    ended = False

    def attention(*args: Any, **kwargs: Any) -> Any:
        return before(*args, **kwargs) if ended else count(before, *args, **kwargs)

    def end() -> None:
        nonlocal ended
        ended = True
        if functional.scaled_dot_product_attention is attention:
            functional.scaled_dot_product_attention = before

    functional.scaled_dot_product_attention = attention
    return end
