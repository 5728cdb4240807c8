"""The command lines of README and docs run as they are written (``UNIFIEDAMP_TEST_EFFORT=full``: many train).

Each runs in one folder with the files that the pages take for granted: a workload from ``unifiedamp init``, a script
with its own loop, a configuration, two records, and the examples.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from effort import FULL

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = ("COMMAND", "--launcher ray", "conformance", "fashion_mnist", "torchrun", "launch.py")
"""Parts of lines that need another package or machine, or take hours."""
CODES = {
    "unifiedamp compare my_model.py --policies mixed_float61": 2,
    "unifiedamp doctor --mesure": 2,
    "unifiedamp train my_model.py --set hiden=256": 2,
    "unifiedamp migrate --check evaluate.py helpers.py wrong.py": 2,
}
"""Lines that a page shows for the error they get, and the code they end with."""
SCRIPT = """
import argparse
import torch
import unifiedamp as ua

parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--record")
options = parser.parse_args()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
amp = ua.Amp("torch", "mixed_bfloat16")
model, optimizer = amp.prepare(model, optimizer)
if options.record:
    amp.record(options.record, every=100, compare=True)
for step in range(200 * options.epochs):
    x = torch.randn(32, 16)
    with amp.autocast():
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    amp.step(optimizer)
"""
OLD_SCRIPT = """
import torch
model = torch.nn.Linear(4, 2)
with torch.autocast("cpu"):
    model(torch.ones(1, 4))
"""


def lines() -> list[str]:
    """The command lines of all pages, each once, in the order in which a reader meets them."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"^```(?:bash|console)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            block = block.replace("\\\n", " ")
            start = r"\$ " if "\n$ " in f"\n{block}" else ""
            found += re.findall(rf"^{start}((?:\w+=\S+ )*unifiedamp [^#\n]+?) *(?:#.*)?$", block, re.MULTILINE)
    once = dict.fromkeys(re.sub(" +", " ", line) for line in found)
    return [line for line in once if not any(part in line for part in ELSEWHERE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the pages take for granted."""
    made = tmp_path_factory.mktemp("reader")
    (made / "train.py").write_text(SCRIPT)
    (made / "amp.toml").write_text('[amp]\nbackend = "torch"\npolicy = "mixed_bfloat16"\n')
    (made / "evaluate.py").write_text(OLD_SCRIPT)
    (made / "helpers.py").write_text("def identity(value):\n    return value\n")
    (made / "wrong.py").write_text("print(\n")
    (made / "examples").symlink_to(ROOT / "examples")
    for name in ("a", "b"):
        done = run(made, f"python train.py --record {name}.jsonl")
        assert done.returncode == 0, done.stderr
    return made


def run(folder, line):
    """Run a line in a shell, as a reader with one framework does: with several, some commands ask for `--backend`."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "UNIFIEDAMP_BACKEND": "torch"}
    return subprocess.run(
        line, shell=True, cwd=folder, env=variables, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.mark.skipif(not FULL, reason="trains for many minutes; UNIFIEDAMP_TEST_EFFORT=full runs it")
@pytest.mark.parametrize("line", lines())
def test_a_command_line_of_a_page_runs(folder, line):
    if line.startswith("unifiedamp init "):
        (folder / line.split()[-1]).unlink(missing_ok=True)
    done = run(folder, line)
    assert done.returncode == CODES.get(line, 0), done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stderr
