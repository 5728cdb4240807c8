"""Two processes that a ``MultiWorkerMirroredStrategy`` joins, with one replica each."""

import json
import os
import socket
import sys
from contextlib import ExitStack

import forked

WORKER = """
import json, math, os, sys
rank, ports = int(sys.argv[1]), sys.argv[2:]
cluster = {"worker": [f"localhost:{port}" for port in ports]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
import tensorflow as tf, unifiedamp as ua
from unifiedamp_tensorflow import internals
from unifiedamp_tensorflow.conformance.harness import Probe
strategy = tf.distribute.MultiWorkerMirroredStrategy()
amp = ua.Amp("tensorflow", "float32", loss_scale=ua.DynamicLossScale(initial_scale=4.0))
with strategy.scope():
    model, optimizer = Probe([1.0]), tf.keras.optimizers.SGD(0.1)
model, optimizer = amp.prepare(model, optimizer)
def step(x):
    amp.backward(lambda: model(x), optimizer)
    amp.step(optimizer)
ran = []
for mode in ("default", "max"):
    run = amp.compile(lambda x: strategy.run(step, (x,)), mode=mode)
    with internals.collect_graphs() as graphs:
        run(tf.constant([0.0]))
    ran.append(any(node.op == "XlaLaunch" for graph in graphs for node in graph.node))
for pair in ((0.5, 0.5), (0.5, math.inf), (0.5, 0.5)):
    run(tf.constant([pair[rank]]))
weight = float(model.weights[0].numpy()[0])
trained = [round(weight, 5), amp.loss_scale, amp.applied_steps, amp.skipped_steps, ran]
amp.close()
from worker_differences import fit_records, records
print(json.dumps([trained, records(strategy, rank), fit_records(strategy)]))
"""


def on_two_workers(script):
    """Run a script in both; return the last line that each printed, read."""
    with socket.socket() as one, socket.socket() as two:
        for place in (one, two):
            place.bind(("localhost", 0))
        ports = [str(place.getsockname()[1]) for place in (one, two)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    commands = ([sys.executable, "-c", script, str(rank), *ports] for rank in (0, 1))
    lines = []
    with ExitStack() as stack:
        workers = [stack.enter_context(forked.start(command, env=environment)) for command in commands]
        for worker in workers:
            stack.callback(worker.kill)
        for worker in workers:
            output, trouble = worker.communicate(timeout=300)
            assert worker.returncode == 0, trouble[-4000:]
            lines.append(json.loads(output.splitlines()[-1]))
    return lines
