"""``tune``, ``record`` and ``explain`` of a script."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from command_runs import mixed_policy
from script_files import RUN, TOY, loop_of, write_script

import unifiedamp as ua
from unifiedamp.config.arguments import read_config
from unifiedamp.recording.reading import read_recording

ENDLESS = "while True: step(amp, model, optimizer)"

pytestmark = pytest.mark.usefixtures("forked_scripts")


def test_tune_writes_a_table_that_a_session_takes(command):
    """The toy is as fast under each policy, so float32 stays; the evidence names what was tried."""
    write_script("train.py", TOY, "amp, model, optimizer = made()", ENDLESS)
    done = command("tune", "--policies", "mixed_bfloat16", "--steps", 10, "--rounds", 2, "--json", *RUN)
    assert done.code == 0, done.err
    table = tomllib.loads(Path("amp.tuned.toml").read_text())
    assert table["amp"]["backend"] == "toy"
    assert list(table["evidence"]["policies"]) == ["float32", "mixed_bfloat16"]
    assert table["evidence"]["policies"]["float32"]["loss"] > 0
    assert table["evidence"]["script"].endswith("train.py")
    assert str(read_config("amp.tuned.toml")["policy"]) == done.json["chosen"] == table["evidence"]["chosen"]


def test_tune_finds_the_layers_that_need_float32(command):
    """The loss of this script is higher unless its layer "2" computes in float32."""
    worse = """
worse = str(amp.policy) != "float32" and "2:float32" not in str(amp.policy)
plain = torch.nn.functional.cross_entropy
torch.nn.functional.cross_entropy = lambda *given: plain(*given) * (2.0 if worse else 1.0)
"""
    write_script("train.py", *loop_of("torch", "'mixed_bfloat16'", worse))
    done = command("tune", "--steps", 10, "--rounds", 1, "--json", *RUN)
    assert done.code == 0, done.err
    assert "mixed_bfloat16;layers=2:float32" in done.json["policies"]
    assert done.json["policies"]["mixed_bfloat16;layers=2:float32"]["float32_layers"] == ["2"]


def test_tune_of_a_script_that_fails_in_float32(command):
    write_script("train.py", TOY, "raise ValueError('no data')")
    done = command("tune", *RUN)
    assert done.code == 2
    assert "does not train in float32" in done.err
    assert "ValueError: no data" in done.err
    assert not Path("amp.tuned.toml").exists()


def test_record_writes_what_report_reads(command, backend):
    mixed = mixed_policy(backend)
    form = "step = amp.compile(step)" if backend == "tensorflow" else ""
    write_script("train.py", *loop_of(backend, repr(mixed), form))
    done = command("record", "--steps", 12, "--every", 5, "--html", "page.html", "--json", *RUN)
    assert done.code == 0, done.err
    recording = read_recording(Path("recording.jsonl"))
    own = [float(line) for line in Path(f"losses-{mixed.partition(';')[0]}.txt").read_text().split()]
    assert [step["step"] for step in recording.steps] == [1, 5, 10]
    for step in recording.steps:
        assert step["loss"] == pytest.approx(own[step["step"] - 1], rel=1e-5)
        assert step["activations"]
    assert recording.header["policy"] == mixed
    assert "<html" in Path("page.html").read_text()
    assert command("report", "recording.jsonl").code == 0


def test_record_keeps_what_there_is_when_the_script_fails(command):
    write_script("train.py", *loop_of("torch", "'float32'", steps=15), "raise ValueError('disk')")
    done = command("record", "--every", 1, *RUN)
    assert done.code == 1
    assert "ValueError: disk" in done.err
    assert len(read_recording(Path("recording.jsonl")).steps) == 15


def test_forecast_names_what_formats_lose(command):
    """The input of the last layer is tiny, and so is the gradient of the first: between them is a factor of 1e-14."""
    faint = """
class Faint(torch.nn.ReLU):
    def forward(self, x):
        return super().forward(x) * 1e-14


model[1] = Faint()
"""
    write_script("train.py", *loop_of("torch", "'mixed_bfloat16'", faint, steps=6))
    done = command("forecast", "--steps", 8, "--html", "page.html", "--json", *RUN)
    assert done.code == 0, done.err
    assert "after 6 steps: it ended before the steps asked for" in done.err
    assert done.json["steps"] == 6
    assert done.json["policies"]["float16"]["policy"] == "mixed_float16;layers=0:float32,2:float32"
    assert done.json["policies"]["float16"]["hurt"]["2"] == "input: 100% flushed to zero"
    assert done.json["chosen"] == "mixed_float8"
    assert "<html" in Path("page.html").read_text()


@pytest.mark.parametrize(
    "framework", [name for name in ("tensorflow", "mxnet") if ua.available_backends()[name].installed]
)
def test_forecast_of_scripts_of_other_frameworks(command, framework):
    write_script("train.py", *loop_of(framework, "'float32'", steps=3))
    done = command("forecast", "--steps", 3, "--formats", "float16,nvfp4", "--json", *RUN)
    assert done.code == 0, done.err
    assert done.json["steps"] == 3
    assert [layer["kind"] for layer in done.json["layers"]] == ["Dense", "Dense"]
    assert done.json["policies"]["float16"]["policy"].startswith("mixed_float16")
    assert done.json["layers"][0]["losses"]["nvfp4"][0]["error"] > 1e-3


def test_forecast_refuses_float16_and_what_cannot_forecast(command):
    write_script("train.py", *loop_of("torch", "'mixed_float16'"))
    done = command("forecast", *RUN)
    assert done.code == 2
    assert "run it under 'float32' or 'mixed_bfloat16': unifiedamp forecast --policy float32" in done.err
    write_script("train.py", TOY, "amp, model, optimizer = made('float32')", ENDLESS)
    done = command("forecast", *RUN)
    assert done.code == 2
    assert "backend 'toy' cannot: not implemented by this backend" in done.err


def test_forecast_refuses_counts_of_another_version(command):
    """The script's environment may hold another version of unifiedamp than the command's."""
    other = "import unifiedamp.forecast.counted\n\nunifiedamp.forecast.counted.VERSION = 7"
    write_script("train.py", *loop_of("torch", "'float32'", other, steps=2))
    done = command("forecast", "--steps", 2, *RUN)
    assert done.code == 2
    said = " ".join(done.err.split())
    assert "the counts of the script's session are of format 7, and this command reads format 1" in said
    assert "run the command in the script's environment" in said


def test_explain_shows_the_plan_and_ends_before_the_first_step(command, backend):
    write_script("train.py", *loop_of(backend, "'float32'"))
    done = command("explain", "--json", *RUN)
    assert done.code == 0, done.err
    rows = {row["setting"]: row["value"] for row in done.json["rows"]}
    assert rows["policy"] == "float32"
    assert rows["backend"].startswith(backend)
    assert len(done.json["layers"]) == 2
    assert not Path("losses-float32.txt").read_text()


def test_explain_of_another_policy(command):
    write_script("train.py", TOY, "amp, model, optimizer = made('mixed_float16')", ENDLESS)
    done = command("explain", "--policy", "mixed_bfloat16", "--json", *RUN)
    assert done.code == 0, done.err
    assert {row["setting"]: row["value"] for row in done.json["rows"]}["policy"] == "mixed_bfloat16"
    assert any("pins policy='mixed_float16'" in line for line in done.json["warnings"])
    assert json.dumps(done.json)


def test_explain_of_a_script_without_a_session(command):
    write_script("train.py", "print('hello')")
    done = command("explain", *RUN)
    assert done.code == 2
    assert "it made no session" in done.err
