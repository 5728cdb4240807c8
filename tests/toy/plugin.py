"""The toy's plugin, registered by tests."""

from unifiedamp.backend import BackendPlugin, hookimpl


def _load():
    from .backend import ToyBackend

    return ToyBackend


@hookimpl
def unifiedamp_backend():
    return BackendPlugin("toy", "numpy", ("numpy",), "pip install numpy", _load, "toy.harness")
