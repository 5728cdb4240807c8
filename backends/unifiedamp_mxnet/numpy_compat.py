"""Importing MXNet on a numpy without the aliases that numpy 1.24 removed (``numpy.bool``).

MXNet 1.9 and 2.0 were written against numpy before 1.24. numpy has the removed names during the import alone;
afterwards it is as before, and the few MXNet modules that look the names up while running get a copy of numpy's
namespace that still has them.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy

ALIASES: dict[str, Any] = {"bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str}
"""What numpy called its aliases of Python's own types, until 1.24."""

LATE_USERS = (
    "mxnet.numpy.multiarray",
    "mxnet.ndarray.numpy._op",
    "mxnet.symbol.numpy._symbol",
    "mxnet.test_utils",
)
"""The modules of MXNet that read an alias in a function body, long after the import."""


class _OldNumpy(ModuleType):
    """numpy's namespace with the aliases; a name that numpy gains later is still found."""

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)


def import_mxnet() -> ModuleType:
    """Import MXNet and return it; numpy's attributes are the same afterwards, also when the import fails.

    Raises:
        ImportError, OSError: MXNet is missing, or its library cannot be loaded.
    """
    if "mxnet" in sys.modules:
        return sys.modules["mxnet"]
    with _aliases(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        mxnet = importlib.import_module("mxnet")
        importlib.import_module("mxnet.contrib.amp" if mxnet.__version__.startswith("1.") else "mxnet.amp")
        _give_to_late_users()
    return mxnet


@contextmanager
def _aliases() -> Iterator[None]:
    missing = [name for name in ALIASES if name not in vars(numpy)]
    for name in missing:
        setattr(numpy, name, ALIASES[name])
    try:
        yield
    finally:
        for name in missing:
            delattr(numpy, name)


def _give_to_late_users() -> None:
    """Give the modules that need the aliases later a copy of numpy with them. Call while numpy has them."""
    old = _OldNumpy("numpy")
    vars(old).update(vars(numpy))
    for module in filter(None, map(sys.modules.get, LATE_USERS)):
        for name, value in list(vars(module).items()):
            if value is numpy:
                setattr(module, name, old)
