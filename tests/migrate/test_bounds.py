"""Files made to hang or crash a reader: hostile numbers, deep trees, long texts. One line each, in bounded work."""

from __future__ import annotations

import cProfile
import json
import pstats
import subprocess
import sys

import pytest
from effort import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st
from migrating import ROOT

from unifiedamp.errors import ConfigError
from unifiedamp.migrate.engine import migrate

FILES = {
    "torch": """\
import torch
from torch.amp import GradScaler, autocast
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler("cuda", init_scale={0}, growth_interval=100)
with autocast("cuda", enabled={1}):
    loss = model(x).sum() * {2}
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
    "apex": """\
from apex import amp
model, optimizer = amp.initialize(model, optimizer, opt_level={1}, loss_scale={0})
loss = model(x).sum() * {2}
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
optimizer.step()
""",
    "keras": """\
import tensorflow as tf
from tensorflow.keras import mixed_precision
mixed_precision.set_global_policy({1})
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(), dynamic=True, initial_scale={0})
model.compile(optimizer=optimizer, loss={2})
model.fit(x, y)
""",
    "mxnet": """\
from mxnet import autograd, gluon
from mxnet.contrib import amp
amp.init(target_dtype={1})
trainer = gluon.Trainer(net.collect_params(), "sgd")
amp.init_trainer(trainer)
with autograd.record():
    loss = net(x) * {2}
    with amp.scale_loss(loss, trainer) as scaled_loss:
        autograd.backward(scaled_loss)
trainer.step({0})
""",
}
HOSTILE = ["9**9**9**9", "1 << 10**12", "2.0**99999", "-(-(-(-9**9**9)))", "'a' * 10**12", "[0] * 10**12", "9" * 5000]
DEEP = {
    "attributes": lambda n: "x = a" + ".a" * n,
    "calls": lambda n: "x = a" + "()" * n,
    "nested calls": lambda n: "x = " + "f(" * n + ")" * n,
    "operators": lambda n: "x = 1" + " + 1" * n,
    "powers": lambda n: "x = 1" + "**1" * n,
    "signs": lambda n: "x = " + "-" * n + "1",
    "not": lambda n: "x = " + "not " * n + "1",
    "and": lambda n: "x = a" + " and a" * n,
    "conditions": lambda n: "x = " + "1 if a else " * n + "1",
    "lambdas": lambda n: "x = " + "lambda a, b: " * n + "1",
    "elif": lambda n: "if a:\n    pass\n" + "elif a:\n    pass\n" * n,
    "texts": lambda n: "x = (" + "'a' " * n + ")",
    "items": lambda n: "x = a" + "[0, 1]" * n,
    "comprehensions": lambda n: "x = [1" + " for a, b in c" * n + "]",
    "lists": lambda n: "x = " + "[" * n + "]" * n,
    "formatted": lambda n: 'x = f"{' + "(" * n + ")" * n + '}"',
    "quotes": lambda n: "x = '''" + "\\'''" * n,
    "blocks": lambda n: "".join(" " * i + "if a:\n" for i in range(min(n, 90))) + " " * 90 + "pass",
}
ALONE = """\
import json, sys
from unifiedamp.errors import ConfigError
from unifiedamp.migrate.engine import migrate
said = {}
for name, text in json.load(sys.stdin).items():
    try:
        done = migrate("old.py", text.encode())
        said[name] = done.status
    except ConfigError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


def in_a_process(texts: dict[str, str]) -> dict[str, str]:
    """Return what migrate says of each text; a hang or a crash fails."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE], input=json.dumps(texts), capture_output=True, text=True, timeout=240, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-500:]
    return json.loads(done.stdout)


def test_numbers_are_never_computed():
    texts = {
        f"{api} {place} {value[:9]}": text.format(*[value if at == place else "4" for at in range(3)])
        for api, text in FILES.items()
        for value in HOSTILE
        for place in range(3)
    }
    assert len(in_a_process(texts)) == len(FILES) * len(HOSTILE) * 3


def test_deep_files_get_one_line():
    said = in_a_process({name: "from torch.amp import GradScaler\n" + make(9_000) for name, make in DEEP.items()})
    for name, line in said.items():
        assert "\n" not in line
        assert name in ("quotes", "blocks") or "nests more than" in line, line


def test_deep_files_without_old_calls_are_left_alone():
    said = in_a_process({name: make(9_000) for name, make in DEEP.items() if name != "quotes"})
    assert set(said.values()) == {"nothing to migrate"}


def test_long_files_get_one_line():
    old = "from torch.cuda.amp import autocast\n"
    said = in_a_process(
        {
            "lines": old + "x = 1\n" * 100_000,
            "bytes": old + "x = '" + "a" * 3_000_000 + "'\n",
            "regions": old + "with autocast():\n    pass\n" * 20_000,
        }
    )
    assert "100,001 lines" in said["lines"]
    assert "bytes" in said["bytes"]
    assert "20,002 times" in said["regions"]


@pytest.mark.parametrize("api", FILES)
def test_work_grows_with_the_length(api):
    """Function calls are counted: time would depend on the machine. Of what a line adds, twice the lines add twice."""
    text = FILES[api].format("2", '"mixed_float16"', "3")
    texts = (text + "\n".join(f"x{i} = foo(1, [2], y.z)" for i in range(n)) for n in (30, 60, 120))
    short, middle, long = map(_calls, texts)
    assert long - middle < 2.05 * (middle - short)


def _calls(text: str) -> int:
    profile = cProfile.Profile()
    profile.runcall(migrate, "old.py", text.encode())
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


VALUES = st.one_of(
    st.sampled_from([*HOSTILE, "None", "True", "...", "'dynamic'", "x[0]", "-1e400"]),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.text(max_size=8).map(repr),
    st.recursive(st.sampled_from(["2", "3.0", "a"]), lambda inner: st.builds("({} ** {})".format, inner, inner)),
)


@settings(max_examples=FUZZ, deadline=None)
@given(st.sampled_from(sorted(FILES)), st.tuples(VALUES, VALUES, VALUES), st.data())
def test_valid_files_with_changed_values(api, values, data):
    """Any value in any place: a migrated file, or lines for a person, or one line of refusal."""
    at = data.draw(st.integers(0, 2))
    text = FILES[api].format(*[values[i] if i == at else "1" for i in range(3)])
    said, after = _said(text)
    assert "\n" not in said
    if _compiles(text):  # Python itself refuses numbers of more than 4,300 digits
        compile(after, "new.py", "exec")


def _compiles(text: str) -> bool:
    try:
        compile(text, "old.py", "exec")
    except SyntaxError:
        return False
    return True


def _said(text: str) -> tuple[str, bytes]:
    """Return the refusal, or the migrated text."""
    try:
        return "", migrate("old.py", text.encode("utf-8", "surrogatepass")).after
    except ConfigError as error:
        return str(error), b""
