"""The entry point of the TensorFlow backend; importing it imports no framework."""

from __future__ import annotations

from unifiedamp.backend import Backend, BackendPlugin, hookimpl

OPTIONS: dict[str, dict[str, object]] = {
    "mode": {
        "enum": ["keras", "graph_rewrite"],
        "default": "keras",
        "description": "Where casts are: in Keras layers, or in the graph of a compiled step (Grappler).",
    },
    "xla": {"type": "boolean", "default": False, "description": "amp.compile compiles by XLA in every mode."},
    "emulate": {"type": "boolean", "default": False, "description": "Run the numerics of float8 on any device."},
}
"""``backend_options.tensorflow``."""


def _load() -> type[Backend]:
    from .backend import TensorFlowBackend

    return TensorFlowBackend


@hookimpl
def unifiedamp_backend() -> BackendPlugin:
    """Return the backend's description."""
    return BackendPlugin(
        "tensorflow",
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"),
        "pip install tensorflow",
        _load,
        harness="unifiedamp_tensorflow.conformance.harness",
        sharing={"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
        aliases=("tf", "keras", "tf.keras", "tf2"),
        place=2,
        options=OPTIONS,
    )
