"""A training that is killed again and again, and resumed each time, has the scale trajectory of one that never was."""

import math
import os
import random
import sys
import time
from pathlib import Path

import forked
from effort import KILLS

from unifiedamp.checkpoint.sealed_file import load_checkpoint
from unifiedamp.conformance.oracle import Oracle

TRAINING = """
import math, os, sys
import numpy as np
import toy.registered
import unifiedamp as ua
from unifiedamp.checkpoint.sealed_file import load_checkpoint, save_checkpoint
from unifiedamp.conformance.driver import probe_run
from unifiedamp.conformance.harness import load_harness

run = probe_run(load_harness("toy"), loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=3))
path, scales = sys.argv[1], []
if os.path.exists(path):
    saved = load_checkpoint(path)
    scales = saved.meta["scales"]
    run.amp.load_state_dict(saved.meta["state"])
print("ready", flush=True)
while True:
    scales.append(run.amp.loss_scale)
    run.feed(math.inf if len(scales) % 7 in (0, 3) else 1.0)
    save_checkpoint(path, {"scales": scales, "state": run.amp.state_dict()}, {"w": np.array(run.weights())})
"""


def test_killed_at_random_moments_the_scale_goes_its_way(tmp_path):
    path, rng = tmp_path / "checkpoint.npz", random.Random(0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    for _ in range(KILLS):
        command = [sys.executable, "-c", TRAINING, str(path)]
        with forked.start(command, forked.KitPopen, env=environment) as training:
            assert training.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0.0, 0.05))
            training.kill()
    scales = load_checkpoint(path).meta["scales"]
    oracle = Oracle([1.0])
    for step in range(1, len(scales) + 1):
        oracle.feed([math.inf if step % 7 in (0, 3) else 1.0])
    assert len(scales) > KILLS
    assert scales == oracle.scales_used
