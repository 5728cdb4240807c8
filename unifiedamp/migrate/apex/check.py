"""The check of a migrated file; it is the same for all torch training loops."""

from ..check import check

__all__ = ["check"]
