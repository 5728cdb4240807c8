"""The MXNet backend of unifiedamp; ``convert_model`` makes copies of models for inference in low precision."""

from typing import Any

__all__ = ["convert_model"]


def __getattr__(name: str) -> Any:
    # MXNet is imported when it is asked for: the plugin's entry point lives in this package, too.
    if name == "convert_model":
        from .models.convert import convert_model

        return convert_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
