"""Stands in for ``unifiedamp.workloads.compare.job`` in a worker: trains nothing and fails as a policy says."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from become import STDOUT

from unifiedamp.errors import LossScaleExhausted, PolicyNotSupportedError
from unifiedamp.policy import Policy
from unifiedamp.workloads.workers import OutOfMemory

SPEED = {"float32": 100.0, "mixed_bfloat16": 200.0, "mixed_float16": 300.0}
"""Samples per second."""
FITS = {"float32": 100, "mixed_bfloat16": 200, "mixed_float16": 1437}
"""The largest batch that fits; ``mixed_float16`` loses its process instead of saying so."""
SENSITIVE = {"b", "d"}
"""Layers without which in float32 ``mixed_float16`` has a higher loss."""
CLEAN = 2.0**12
"""The largest loss scale that skips nothing."""


def hang(tell, answer):
    time.sleep(600)


def tell_the_same(tell, answer):
    while True:
        tell([1, 10])
        time.sleep(0.05)


def tell_nonsense(tell, answer):
    tell("nonsense")
    tell({"a": [1]})
    return answer


def write(what):
    """Write to the pipe itself, which no handler should: what was standard output once."""

    def to_pipe(tell, answer):
        for file in range(3, 64):
            with contextlib.suppress(OSError):
                if os.fstat(file).st_ino == int(os.environ[STDOUT]):
                    os.write(file, what)
        time.sleep(600)

    return to_pipe


MISBEHAVE = {
    "hangs": hang,
    "tells the same": tell_the_same,
    "tells nonsense": tell_nonsense,
    "writes garbage": write(b"\xff\x00garbage\n"),
    "writes a list": write(b"[1, 2]\n"),
    "writes half an answer": write(b'{"failed": "so"}\n'),
    "answers nothing": lambda *_: None,
    "answers a word": lambda *_: "word",
    "answers a list": lambda *_: [1, 2],
    "answers no key": lambda *_: {},
    "answers other types": lambda _, answer: dict.fromkeys(answer, "x") if isinstance(answer, dict) else "x",
    "answers nan": lambda _, answer: dict.fromkeys(answer, float("nan")) if isinstance(answer, dict) else [],
    "answers zeros": lambda _, answer: dict.fromkeys(answer, 0) if isinstance(answer, dict) else [],
}
"""What a job does instead of answering; named by FAKE_DOES, at the request FAKE_AT, under the policy FAKE_IS."""


class FakeJob:
    """A job's answers, each by its request's name; ``tell`` reports progress."""

    def __init__(self, tell):
        self.tell = tell
        self.policy, self.scale, self.seconds = None, {}, 0.0

    @property
    def name(self):
        return self.policy.name

    def begin(self, target, config, out, amp, train, given):
        policy = Policy.parse(amp["policy"])
        if policy.param_dtype == "float16":
            raise PolicyNotSupportedError("no float16 here")
        self.policy, self.scale = policy, amp.get("loss_scale") or {}
        slow = os.environ.get("FAKE_SLOW") == policy.name
        self.seconds = 64 / (100.0 if slow else SPEED.get(policy.name, 100.0))
        return {"policy": str(policy), "device": "none", "samples": 1437, "window": 1, "notes": ["a note"]}

    def train(self):
        self._fail()
        self.tell([5, 10])
        accuracy = 0.9 if self.name == "float32" else 0.91
        curves = {"compile_seconds": 12.5, "losses": [2.0, None, 1.0], "scales": [[1, 1024.0, 0], [2, 512.0, 1]]}
        scores = dict.fromkeys(("precision", "recall", "f1"), 0.5)
        state = {"scale": 512.0, "applied_steps": 2, "skipped_steps": 1, "peak_memory": 2**30, "memory_of": "device"}
        return {"accuracy": accuracy, **scores, "test_images": 360, "loss": 1.0, **curves, **state}

    def _fail(self):
        if self.name == "bfloat16":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.policy.op_overrides:
            raise LossScaleExhausted("exhausted", skips=50, scale=1.0, tensors=(), loss_was_finite=True)
        if self.policy.layer_overrides:
            raise OutOfMemory("out of memory")
        if os.environ.get("FAKE_HANGS") == self.name:
            self.tell([1, 10])
            time.sleep(600)

    def turn(self, windows):
        return {"seconds": windows * self.seconds, "samples": 64 * windows}

    def fits(self, batch_size, memory):
        if batch_size > FITS[self.name] and self.name == "mixed_float16":
            os._exit(1)
        return batch_size <= FITS[self.name]

    def profile(self, windows):
        return {"kernels": {"ampere_sgemm_32x128_tn": 1.0, "ampere_fp16_s16816gemm_fp16_128x128_nn": 3.0}}

    def probe(self, steps, clean):
        """Loss 1, or 1.5 under float16 unless the sensitive layers are in float32."""
        whole = {glob for glob, dtype in self.policy.layer_overrides.items() if dtype == "float32"}
        loss = 1.5 if self.name == "mixed_float16" and not whole >= SENSITIVE else 1.0
        scale = self.scale.get("initial_scale", 1.0)
        skipped, count = [], 0
        while len(skipped) < steps and not (clean and len(skipped) - count >= clean):
            if scale > CLEAN:
                scale, count = scale / 2, count + 1
            skipped.append(count)
        found = {"losses": [loss] * len(skipped), "skipped": skipped, "stopped": "", "layers": ["a", "b", "c", "d"]}
        return {**found, "scale": scale}

    def count(self, steps):
        """What a forecast counts: gradients near 1, and near 2**-77 in layers b, c and d."""
        about = {"backend": "toy", "device": "none", "policy": self.name, "steps": steps, "asked": steps}
        places = {name: (1016, 1.1) if name == "a" else (400, 2.0**-77) for name in "abcd"}
        return {"format": "unifiedamp-forecast-counts", "version": 1, "about": about, "layers": [
            {"layer": name, "kind": "Linear", "float8": "", "work": 1, "holds_layers": False, "tensors": {"gradient": {
                "counts": {str(place): 100}, "largest": largest, "non_finite": 0, "float8": {}, "scaled": {}}}}
            for name, (place, largest) in places.items()
        ]}  # fmt: skip


def make(tell):
    job = FakeJob(tell)

    def handle(request):
        name = request.pop("do")
        answer = getattr(job, name)(**request)
        if (os.environ.get("FAKE_AT"), os.environ.get("FAKE_IS")) == (name, job.name):
            print("last words", file=sys.stderr, flush=True)
            return MISBEHAVE[os.environ["FAKE_DOES"]](tell, answer)
        return answer

    return handle
