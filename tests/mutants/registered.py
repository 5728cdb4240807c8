"""Importing this registers the toy backend, and the mutant that ``UNIFIEDAMP_MUTANT`` names as backend ``mutant``."""

import os
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


@hookimpl
def unifiedamp_backend():
    broken, _ = MUTANTS[os.environ["UNIFIEDAMP_MUTANT"]]
    return BackendPlugin("mutant", "numpy", ("numpy",), "pip install numpy", lambda: broken, __name__)


plugins.register("mutant", sys.modules[__name__])
