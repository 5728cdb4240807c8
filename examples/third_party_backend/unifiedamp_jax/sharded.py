"""One step over two devices, for the conformance suite: ``python -m unifiedamp_jax.sharded``.

Runs in a separate process, because JAX fixes the number of CPU devices at initialization. Reads a JSON list of two
gradients and the text of a loss scale from the command line; prints each device's parameter and skipped steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys


def device_run(gradients: list[float], loss_scale: str) -> list[tuple[float, int]]:
    """Run this module in a process with two CPU devices; return its output."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    command = [sys.executable, "-m", __name__, json.dumps(gradients), loss_scale]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [(value, skipped) for value, skipped in json.loads(done.stdout)]


def main(gradients: list[float], loss_scale: str) -> list[tuple[float, int]]:
    """Train a parameter of two elements, one on each device."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx
    from jax.sharding import NamedSharding, PartitionSpec

    import unifiedamp as ua

    from .optimizer import Optimizer

    split = NamedSharding(jax.make_mesh((2,), ("device",)), PartitionSpec("device"))

    class Split(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jax.device_put(jnp.ones(2), split))

        def __call__(self, x: jax.Array) -> jax.Array:
            return (self.w * x).sum()

    amp = ua.Amp("jax", "float32", loss_scale=loss_scale)
    model = Split()
    model, optimizer = amp.prepare(model, Optimizer(model, optax.sgd(0.1)))

    @amp.compile
    def step(x: jax.Array) -> None:
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)

    step(jax.device_put(jnp.asarray(gradients, jnp.float32), split))
    shards = sorted(model.w.get_value().addressable_shards, key=lambda shard: shard.device.id)
    return [(float(shard.data[0]), amp.skipped_steps) for shard in shards]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]), sys.argv[2])))
