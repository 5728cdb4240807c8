"""The entry point of the torch backend: light facts, no framework."""

from unifiedamp.backend import Backend, BackendPlugin, hookimpl

OPTIONS: dict[str, dict[str, object]] = {
    "cache_enabled": {
        "type": "boolean",
        "description": "Keep autocast's casts of parameters within a region. Left out: unless torch's cache loses "
        "gradients.",
    },
    "emulate": {"type": "boolean", "default": False, "description": "Run the numerics of float8 on any device."},
    "float8_min_features": {
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "The smallest in_features and out_features of linear layers that run in float8.",
    },
    "float8_all_gather": {
        "type": "boolean",
        "default": False,
        "description": "fully_shard gathers the weights of layers with one float8 scale in float8.",
    },
    "scale_on_device": {
        "type": "boolean",
        "default": False,
        "description": "Keep the loss scale in device scalars on a CPU too, as on a GPU.",
    },
    "scope_device": {
        "type": "boolean",
        "default": True,
        "description": "amp.scope() creates tensors on the session's device; false leaves them where torch creates "
        "them, and amp.prepare moves the models.",
    },
    "process_group": {
        "const": False,
        "description": "False: this rank trains alone. In Python also a torch.distributed.ProcessGroup: the ranks that "
        "train together. Left out: those that share the models.",
    },
    "shards_reduce_once": {
        "type": "boolean",
        "default": True,
        "description": "Models of fully_shard reduce gradients once per accumulation window, and keep whole ones on "
        "each rank until then; false reduces after each backward pass, which takes less memory.",
    },
}
"""``backend_options.torch``."""


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
        options=OPTIONS,
    )
