"""The entry point of the tensorflow backend: light facts, no framework."""

from unifiedamp.backend import BackendPlugin, hookimpl


def _load():  # type: ignore[no-untyped-def]
    from .backend import TensorFlowBackend

    return TensorFlowBackend


@hookimpl
def unifiedamp_backend() -> BackendPlugin:
    """Return the backend's description."""
    return BackendPlugin(
        "tensorflow",
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu"),
        "pip install 'unifiedamp[tensorflow]'",
        _load,
    )
