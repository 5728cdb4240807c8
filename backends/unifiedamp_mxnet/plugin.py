"""The entry point of the mxnet backend: light facts, no framework."""

from unifiedamp.backend import BackendPlugin, hookimpl


def _load():  # type: ignore[no-untyped-def]
    from .backend import MXNetBackend

    return MXNetBackend


@hookimpl
def unifiedamp_backend() -> BackendPlugin:
    """Return the backend's description."""
    return BackendPlugin(
        "mxnet",
        "mxnet",
        ("mxnet", "mxnet-cu117", "mxnet-cu112"),
        "pip install 'mxnet>=1.9.1' 'numpy<2'",
        _load,
        "unifiedamp_mxnet.harness",
        aliases=("gluon", "mx"),
        place=3,
    )
