"""A training that dies again and again, and is resumed each time, has the scale trajectory of one that never was."""

import itertools
import math
import random
import sys
import time

import forked
import numpy as np
import pytest
import toy.registered  # noqa: F401
from crashes import Disk, killed
from effort import KILLS

from unifiedamp import DynamicLossScale
from unifiedamp.checkpoint.sealed_file import load_checkpoint, save_checkpoint
from unifiedamp.conformance.driver import probe_run
from unifiedamp.conformance.harness import load_harness
from unifiedamp.conformance.oracle import Oracle


def train(path, steps=None, fatal=None):
    """Resume what there is, and train step by step, each followed by a checkpoint."""
    run = probe_run(load_harness("toy"), loss_scale=DynamicLossScale(initial_scale=4.0, growth_interval=3))
    scales = []
    if path.exists():
        saved = load_checkpoint(path)
        scales = saved.meta["scales"]
        run.amp.load_state_dict(saved.meta["state"])
    disk = Disk(fatal).install() if fatal is not None else None
    print("ready", flush=True)
    for _ in itertools.count() if steps is None else range(steps):
        scales.append(run.amp.loss_scale)
        run.feed(math.inf if len(scales) % 7 in (0, 3) else 1.0)
        save_checkpoint(path, {"scales": scales, "state": run.amp.state_dict()}, {"w": np.array(run.weights())})
        print("saved", flush=True)
    return disk


def goes_its_way(path):
    scales = load_checkpoint(path).meta["scales"]
    oracle = Oracle([1.0])
    for step in range(1, len(scales) + 1):
        oracle.feed([math.inf if step % 7 in (0, 3) else 1.0])
    assert scales == oracle.scales_used
    return len(scales)


PLACES = 9
"""What a checkpoint does to the disk: three around its write, two each around two ``fsync`` and a ``replace``."""


def test_dying_at_every_place_in_turn_the_scale_goes_its_way(tmp_path):
    """At each place of the first, the second and the third checkpoint that each process writes."""
    path, written = tmp_path / "checkpoint.npz", 0
    for fatal in range(3 * PLACES):
        assert killed(train, path, 4, fatal)
        replaced = fatal % PLACES >= PLACES - 3
        written += fatal // PLACES + replaced
        assert (goes_its_way(path) if path.exists() else 0) == written
    assert written > 30


@pytest.mark.skipif(not KILLS, reason="random kills belong to the full session; each place is died at above")
def test_killed_at_random_moments_the_scale_goes_its_way(tmp_path):
    path, rng, saved = tmp_path / "checkpoint.npz", random.Random(0), 0
    code = "import pathlib, sys; from test_killed_training import train; train(pathlib.Path(sys.argv[1]))"
    for _ in range(KILLS):
        with forked.start([sys.executable, "-c", code, path]) as training:
            assert training.stdout.readline() == "ready\n"
            for _ in range(rng.randrange(3)):
                assert training.stdout.readline() == "saved\n"
                saved += 1
            time.sleep(rng.uniform(0.0, 0.02))
            training.kill()
    assert goes_its_way(path) >= saved > KILLS / 2
