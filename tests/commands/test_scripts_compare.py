"""``unifiedamp compare -- python script.py``: what the rows say, against what the script wrote itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_runs import a_mixed_policy, installed
from script_files import RUN, TOY, loop_of, write_script

FORMS = {
    "eager": "",
    "compiled": "step = amp.compile(step)",
}
DECORATED = "step = amp.compile(mode='default')(step)"


def written(policy):
    return [float(line) for line in Path(f"losses-{policy}.txt").read_text().split()]


def rows_of(done):
    assert done.out, done.err
    return done.json["rows"]


def check_losses(row, steps):
    """The row has the losses of the script, step by step, and their mean at the end.

    The last step ends the script before it writes its loss.
    """
    own = written(row["policy"])
    assert len(own) == steps - 1
    assert len(row["losses"]) == steps
    assert row["losses"][:-1] == pytest.approx(own, rel=1e-5)
    assert row["losses"][-1] < row["losses"][0]
    last = row["losses"][-(steps // 5) :]
    assert row["loss"] == pytest.approx(sum(last) / len(last), rel=1e-6)


@pytest.mark.usefixtures("forked_scripts")
@pytest.mark.parametrize("form", FORMS)
def test_rows_have_the_losses_of_the_script(command, backend, form):
    """Whether the step is eager or compiled; the script's own policy is the second row."""
    check_rows(command, backend, FORMS[form])


def test_rows_of_a_decorated_step(command):
    """A decorator is core's: what it makes of the step is compiled as above, so one backend shows it."""
    check_rows(command, installed()[0], DECORATED)


def check_rows(command, backend, form):
    mixed = a_mixed_policy(backend) or "float32"
    write_script("train.py", *loop_of(backend, repr(mixed), form))
    done = command("compare", "--steps", 15, "--rounds", 2, "--json", *RUN)
    rows = rows_of(done)
    assert done.code == 0, done.err
    assert [row["policy"] for row in rows] == list(dict.fromkeys(["float32", mixed]))
    for row in rows:
        assert (row["backend"], row["state"], row["unit"]) == (backend, "done", "steps")
        check_losses(row, 15)
        assert len(row["rates"]) == 2
        assert min(row["rates"]) > 0
    if mixed != "float32":
        assert any(f"pins policy='{mixed}'; measured under 'float32'" in note for note in rows[0]["notes"])
        assert rows[1]["ratio"] > 0


def test_table_and_page_say_what_was_overridden(command):
    write_script("train.py", TOY, "amp, model, optimizer = made('mixed_float16', loss_scale=8.0)",
                 "while True: step(amp, model, optimizer)")  # fmt: skip
    done = command("compare", "--policies", "float32,mixed_float16", "--steps", 12, "--rounds", 2, *RUN)  # fmt: skip
    assert done.code == 0, done.err
    said = "the script pins policy='mixed_float16'; measured under 'float32'"
    left_out = "the script's loss scale is left out under 'float32', which needs none"
    for text in (done.out, Path("runs/compare-train/compare.md").read_text()):
        assert said in text.replace("&#39;", "'")
        assert left_out in text.replace("&#39;", "'")
    assert "pins policy" in Path("runs/compare-train/compare.html").read_text()
    rows = json.loads(Path("runs/compare-train/compare.json").read_text())["rows"]
    assert [row["scale"] for row in rows] == [1.0, 8.0]
    assert rows[1]["notes"] == []


def test_loss_scale_and_skips_are_in_the_row(command):
    """Gradients of 2e38 overflow under any scale above 1: the scale falls by half with each step."""
    loop = "while True:\n    step(amp, model, optimizer)"
    huge = "x = x * np.float32(1e4); labels = labels * 0"
    write_script("train.py", TOY, huge, "amp, model, optimizer = made()", loop)
    done = command("compare", "--policies", "mixed_float16", "--loss-scale", "static(scale=1e38)", "--steps", 10,
                   "--rounds", 1, "--json", *RUN)  # fmt: skip
    (row,) = rows_of(done)
    assert row["scale"] == pytest.approx(1e38)
    assert row["skipped_steps"] + row["applied_steps"] == 10


def test_a_step_is_an_iteration_of_all_optimizers(command):
    """Two optimizers that take turns: the curve is that of the first."""
    write_script(
        "gan.py",
        TOY,
        """
amp = ua.Amp("toy", "float32")
pairs = []
for _ in range(2):
    model = harness.mlp([(rng.standard_normal((8, 8), np.float32), np.zeros(8, np.float32))])
    pairs.append(amp.prepare(model, harness.sgd([model], 1e-3)))
with open("own.txt", "w") as own:
    while True:
        losses = [step(amp, *pair) for pair in pairs]
        print(*losses, file=own, flush=True)
""",
    )
    done = command(
        "compare",
        "--policies",
        "float32",
        "--steps",
        8,
        "--rounds",
        1,
        "--json",
        "--timeout",
        60,
        "--",
        sys.executable,
        "gan.py",
    )
    (row,) = rows_of(done)
    own = [float(line.split()[0]) for line in Path("own.txt").read_text().splitlines()]
    assert row["losses"][:7] == pytest.approx(own[:7], rel=1e-5)
    assert row["applied_steps"] == 16


def test_a_window_of_micro_batches_is_one_step(command):
    write_script("train.py", TOY, "amp, model, optimizer = made('float32', accumulate_steps=3)",
                 "while True: step(amp, model, optimizer)")  # fmt: skip
    done = command("compare", "--policies", "float32", "--steps", 6, "--rounds", 1, "--json", *RUN)
    (row,) = rows_of(done)
    assert (row["applied_steps"], len(row["losses"])) == (6, 6)


def test_a_script_that_ends_early_is_measured_on_its_steps(command):
    write_script("train.py", TOY, "amp, model, optimizer = made()", "for _ in range(17): step(amp, model, optimizer)")
    done = command("compare", "--policies", "float32,mixed_float16", "--json", *RUN)
    rows = rows_of(done)
    assert done.code == 0, done.err
    assert [(row["state"], len(row["losses"])) for row in rows] == [("done", 17)] * 2
    assert any("the script ended after 17 steps; measured on those" in note for note in rows[0]["notes"])


def test_processes_of_a_launcher_are_one_run(command):
    """Two ranks that train, and a worker that imports the script: one row, one log, and the same policy in both."""
    write_script(
        "train.py",
        TOY,
        """
import multiprocessing


def train(rank):
    os.environ["RANK"] = str(rank)
    amp, model, optimizer = made()
    open(f"policy-{rank}.txt", "a").write(str(amp.policy) + "\\n")
    while True:
        step(amp, model, optimizer)


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=train, args=(rank,)) for rank in (1, 0)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
else:
    worker = ua.Amp("toy", "float32")
""",
    )
    done = command("compare", "--policies", "mixed_bfloat16", "--steps", 8, "--rounds", 1, "--json", *RUN)  # fmt: skip
    (row,) = rows_of(done)
    assert row["state"] == "done", row
    assert len(row["losses"]) == 8
    assert {Path(f"policy-{rank}.txt").read_text().strip() for rank in (0, 1)} == {"mixed_bfloat16"}
