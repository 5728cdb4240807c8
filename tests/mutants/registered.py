"""Importing this registers the toy backend, and as backend ``mutant`` the mutant that is chosen."""

import sys

import toy.registered  # noqa: F401
from toy.harness import ToyHarness

from unifiedamp.backend import BackendPlugin, hookimpl
from unifiedamp.config import plugins

from .every import MUTANTS


class MutantHarness(ToyHarness):
    """The toy's harness for the mutant."""

    backend = "mutant"


harness = MutantHarness()
_chosen: list[str] = []


def choose(name: str) -> None:
    """Say which mutant this process tests, before anything uses the backend."""
    _chosen[:] = [name]


@hookimpl
def unifiedamp_backend():
    return BackendPlugin("mutant", "numpy", ("numpy",), "pip install numpy", lambda: MUTANTS[_chosen[0]][0], __name__)


plugins.register("mutant", sys.modules[__name__])
