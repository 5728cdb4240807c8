"""The entry point of the JAX backend; imports no framework."""

from __future__ import annotations

from unifiedamp.backend import Backend, BackendPlugin, hookimpl


def _load() -> type[Backend]:
    from .backend import JaxBackend

    return JaxBackend


@hookimpl
def unifiedamp_backend() -> BackendPlugin:
    """Return the backend's description; the framework is flax, which depends on jax and optax."""
    return BackendPlugin(
        name="jax",
        framework="flax",
        distributions=("jax", "flax"),
        install="pip install unifiedamp-jax",
        load=_load,
        harness="unifiedamp_jax.harness",
        modules=("jax", "jaxlib", "flax"),
        sharing={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )
