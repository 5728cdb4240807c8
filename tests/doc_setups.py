"""What the pages under docs/ take for granted: the names that a block of Python may use, by the setup that it names.

A block runs under the setup that the nearest comment above it names, ``<!-- setup: torch -->``; the first setup of a
page is ``torch`` unless it names another. Blocks of one setup run in one namespace, in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import unifiedamp as ua

ROWS = [np.random.default_rng(seed).standard_normal((32, 64), np.float32) for seed in range(8)]


def torch() -> dict[str, Any]:
    """A model, an optimizer, a loss and batches, nothing prepared."""
    import torch

    torch.manual_seed(0)

    def make_model() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def make_optimizer(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model = make_model()
    batches = [(torch.from_numpy(x), torch.from_numpy((x[:, 0] > 0).astype(np.int64))) for x in ROWS]
    return {
        "ua": ua, "np": np, "torch": torch, "make_model": make_model, "make_optimizer": make_optimizer,
        "loss_fn": torch.nn.functional.cross_entropy, "batches": batches, "loader": batches,
        "x": batches[0][0], "y": batches[0][1], "model": model, "optimizer": make_optimizer(model),
    }  # fmt: skip


def session() -> dict[str, Any]:
    """The same with a prepared session, and a step."""
    names = torch()
    amp = ua.Amp("torch", "float32", loss_scale="dynamic")
    model, optimizer = amp.prepare(names["model"], names["optimizer"])

    def train_step(x: Any, y: Any) -> Any:
        loss = amp.backward(lambda: names["loss_fn"](model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    return names | {"amp": amp, "train_step": train_step}


def sinks() -> dict[str, Any]:
    """The same with sinks of other libraries, without a network."""
    import os

    import pytest

    pytest.importorskip("wandb")
    from unifiedamp.integrations.wandb import WandbSink

    os.environ["WANDB_MODE"] = "offline"
    return session() | {"WandbSink": WandbSink}


def process_group() -> dict[str, Any]:
    """A process group of one process."""
    import tempfile

    from torch import distributed

    if not distributed.is_initialized():
        folder = tempfile.mkdtemp()
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    return torch() | {"cleanup": distributed.destroy_process_group}


def strategy() -> dict[str, Any]:
    """A strategy over two replicas of the CPU, and the step of one replica."""
    import tensorflow as tf

    if len(tf.config.list_logical_devices("CPU")) < 2:
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    else:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    names: dict[str, Any] = {"ua": ua, "np": np, "tf": tf, "strategy": strategy}
    names["amp"] = amp = ua.Amp("tensorflow", "float32", loss_scale="dynamic")

    def make_model() -> Any:
        return tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(10)])

    def replica_step(x: Any, y: Any) -> None:
        with amp.autocast():
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, names["model"](x))
            loss = tf.reduce_sum(losses) / 32.0
        with amp.scale_loss(loss, names["optimizer"]) as scaled_loss:
            scaled_loss.backward()
        amp.step(names["optimizer"])

    batch = (tf.constant(ROWS[0]), tf.constant((ROWS[0][:, 0] > 0).astype(np.int32)))
    names |= {"make_model": make_model, "make_optimizer": lambda: tf.keras.optimizers.SGD(0.1)}
    return names | {"replica_step": replica_step, "batch": batch}


def keras() -> dict[str, Any]:
    """A model for ``fit``, and data."""
    import tensorflow as tf

    def make_model() -> Any:
        return tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(10, dtype="float32")])

    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    names = {"ua": ua, "keras": tf.keras, "make_model": make_model, "loss": loss}
    return names | {"x": ROWS[0], "y": (ROWS[0][:, 0] > 0).astype(np.int32)}


def tensorflow() -> dict[str, Any]:
    """Nothing: the page's blocks are whole programs."""
    return {}


def mxnet() -> dict[str, Any]:
    """The package alone."""
    ua.Amp("mxnet", "float32")
    return {"ua": ua, "np": np}


SETUPS: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": torch, "session": session, "sinks": sinks, "process group": process_group, "strategy": strategy,
    "keras": keras, "tensorflow": tensorflow, "mxnet": mxnet,
}  # fmt: skip
FRAMEWORKS = {
    "torch": "torch", "session": "torch", "sinks": "torch", "process group": "torch", "strategy": "tensorflow",
    "keras": "tensorflow", "tensorflow": "tensorflow", "mxnet": "mxnet",
}  # fmt: skip
