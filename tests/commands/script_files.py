"""Small training scripts that tests write, one per way of holding a loop."""

from __future__ import annotations

import sys
from pathlib import Path

RUN = ("--timeout", 120, "--", sys.executable, "train.py")
"""Ends the arguments of a command that runs ``train.py``."""

TOY = """\
import os, signal, sys, threading, time
import numpy as np
import toy.registered
import unifiedamp as ua
from unifiedamp.conformance.harness import load_harness

harness, rng = load_harness("toy"), np.random.default_rng(0)


def made(policy="mixed_float16", **options):
    amp = ua.Amp("toy", policy, **options)
    with amp.scope():
        model = harness.mlp([(rng.standard_normal((8, 8), np.float32), np.zeros(8, np.float32))] * 2)
        optimizer = harness.sgd([model], 1e-3)
    return amp, *amp.prepare(model, optimizer)


x, labels = rng.standard_normal((4, 8), np.float32), np.arange(4)


def step(amp, model, optimizer):
    loss = amp.backward(lambda: harness.cross_entropy(model(amp.to_native(x)), amp.to_native(labels)), optimizer)
    amp.step(optimizer)
    return float(amp.to_numpy(loss))
"""
"""A session of the toy backend, which needs no framework: such a script starts at once."""

TORCH = """\
import torch
import unifiedamp as ua

torch.manual_seed(0)
amp = ua.Amp("torch", policy=POLICY)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer = amp.prepare(model, optimizer)
x, labels = torch.randn(8, 16), torch.arange(8) % 4


def step():
    with amp.autocast():
        loss = torch.nn.functional.cross_entropy(model(x), labels)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    amp.step(optimizer)
    return loss
"""

TENSORFLOW = """\
import numpy as np
import tensorflow as tf
import unifiedamp as ua

tf.keras.utils.set_random_seed(0)
amp = ua.Amp("tensorflow", policy=POLICY)
with amp.scope():
    model = tf.keras.Sequential([tf.keras.Input((16,)), tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(4)])
    optimizer = tf.keras.optimizers.SGD(0.1)
model, optimizer = amp.prepare(model, optimizer)
measure = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
x, labels = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32), np.arange(8) % 4


def step():
    with amp.autocast():
        loss = measure(labels, model(x, training=True))
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    amp.step(optimizer)
    if loss > 1e9:  # AutoGraph must go on rewriting what it sees
        loss = loss * 2.0
    return loss
"""

MXNET = """\
import numpy as np
import unifiedamp as ua

amp = ua.Amp("mxnet", policy=POLICY)  # before MXNet, which today's numpy alone cannot import
import mxnet as mx
from mxnet import gluon

mx.random.seed(0)
with amp.scope():
    model = gluon.nn.HybridSequential()
    model.add(gluon.nn.Dense(32, activation="relu", in_units=16), gluon.nn.Dense(4, in_units=32))
    model.initialize()
    optimizer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
model, optimizer = amp.prepare(model, optimizer)
measure = gluon.loss.SoftmaxCrossEntropyLoss()
data = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
x, labels = amp.to_native(data), amp.to_native((np.arange(8) % 4).astype(np.float32))


def step():
    loss = amp.backward(lambda: measure(model(x), labels).mean(), optimizer)
    amp.step(optimizer)
    return loss
"""

SCRIPTS = {"torch": TORCH, "tensorflow": TENSORFLOW, "mxnet": MXNET}
LOOP = """
with open(f"losses-{ORIGIN}.txt", "a") as own:
    for _ in range(STEPS):
        print(float(np.mean(amp.to_numpy(step()))), file=own, flush=True)
"""
"""A loop that writes its losses itself."""


def write_script(name: str, *parts: str) -> Path:
    path = Path(name)
    path.write_text("import numpy as np\n" + "\n".join(parts))
    return path


def loop_of(backend: str, policy: str = "None", form: str = "", steps: int = 10**9) -> tuple[str, ...]:
    """The parts of a script that trains and writes its losses to a file named after the policy in force."""
    begin = SCRIPTS[backend].replace("POLICY", policy)
    origin = "ORIGIN = str(amp.policy).partition(';')[0]"
    return (begin, form, origin, LOOP.replace("STEPS", str(steps)))
