"""The entry point of the torch backend: light facts, no framework."""

from unifiedamp.backend import Backend, BackendPlugin, hookimpl


def _load() -> type[Backend]:
    from .backend import TorchBackend

    return TorchBackend


@hookimpl
def unifiedamp_backend() -> BackendPlugin:
    """Return the backend's description."""
    return BackendPlugin(
        "torch",
        "torch",
        ("torch",),
        "pip install torch",
        _load,
        "unifiedamp_torch.conformance.harness",
        starter="unifiedamp_torch.starter",
        aliases=("pytorch",),
        place=1,
    )
