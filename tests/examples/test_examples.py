"""Each example script runs as its page says, with ``--smoke``: it learns, and what it prints are numbers."""

import functools
import importlib.util
import math
import os
import re
import runpy
import sys
from pathlib import Path

import forked
import pytest
from clusters import of_mxnet, of_tensorflow, run_together

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SUMMARY = re.compile(r"loss (\S+) -> (\S+) +scale (\S+) +(\d+) steps applied, (\d+) skipped")

torch, tensorflow, mxnet = (
    pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}")
    for name in ("torch", "tensorflow", "mxnet")
)


@pytest.fixture
def script(monkeypatch, capsys, tmp_path):
    """Run a script as the command line does, its folder first on the path; return what it prints."""

    def run(path, *arguments, code=0):
        monkeypatch.setattr(sys, "argv", [path, "--smoke", *arguments])
        monkeypatch.syspath_prepend(EXAMPLES / Path(path).parent)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(EXAMPLES / path), run_name="__main__")
        said = capsys.readouterr()
        assert stop.value.code == code, said.err
        return said.err if code else said.out

    return run


def summaries(text):
    """Return (first loss, last loss, scale, applied, skipped) of each run in a script's output."""
    found = [tuple(map(float, groups)) for groups in SUMMARY.findall(text)]
    assert found, text
    assert all(map(math.isfinite, sum(found, ()))), text
    return found


def learnt(text, runs=1):
    """Return each run's scale, applied and skipped steps, if all of them learnt."""
    found = summaries(text)
    assert len(found) == runs, text
    for first, last, *_ in found:
        assert last < 0.9 * first, text
    return [row[2:] for row in found]


SCRIPTS = sorted(path for path in EXAMPLES.glob("*/*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_each_script_has_a_page_with_its_command_and_output(path):
    pages = [page.read_text() for page in (EXAMPLES.parent / "docs" / "examples").glob("*.md")]
    command = f"python examples/{path.parent.name}/{path.name} --smoke"
    assert any(f"$ {command}" in page for page in pages), command


# -- torch -------------------------------------------------------------------------------------------------------------


@torch
def test_resnet50_in_float32_and_mixed(script, tmp_path):
    text = script("torch/resnet50_fashion_mnist.py", "--policy", "mixed_bfloat16")
    assert learnt(text, runs=2) == [(1.0, 30, 0), (65536.0, 30, 0)]
    assert (tmp_path / "runs" / "resnet50_scale.png").read_bytes().startswith(b"\x89PNG")
    rows = [line.split() for line in text.splitlines()[-2:]]
    assert [row[0] for row in rows] == ["float32", "mixed_bfloat16"]
    for _, _, accuracy, precision, recall, f1 in rows:
        assert 0.1 < float(accuracy) <= 1
        assert all(0 < float(figure) <= 1 for figure in (precision, recall, f1))


@torch
def test_a_gans_optimizers_share_one_scale(script):
    text = script("torch/gan.py")
    judge, maker = summaries(text)
    assert judge[1] < 0.9 * judge[0]
    assert judge[2:] == maker[2:] == (65536.0, 2 * 30, 0)


@torch
def test_a_bert_encoders_schedule_counts_applied_steps(script):
    text = script("torch/bert_encoder.py")
    ((_, applied, _),) = learnt(text)
    assert f"schedule after {applied:.0f} steps" in text


@torch
def test_accumulation_checkpointing_and_clipping(script):
    text = script("torch/accumulate_checkpoint_clip.py", "--window", "4")
    assert learnt(text) == [(65536.0, 30, 0)]
    low, high = map(float, re.search(r"clipping to 1: (\S+) to (\S+)", text).groups())
    assert 0 < low < high
    with_it, without = map(float, re.search(r"batch: (\S+) MB with checkpointing, (\S+) MB", text).groups())
    assert with_it < 0.7 * without


@pytest.fixture(scope="module")
def in_ranks(tmp_path_factory):
    """Run ``several_ranks.py``; return the test accuracy that it prints. What was run before is not run again."""

    @functools.cache
    def run(processes, *arguments):
        script = [str(EXAMPLES / "torch" / "several_ranks.py"), "--smoke", "--policy", "float32", *arguments]
        options = {"cwd": tmp_path_factory.mktemp("ranks"), "env": {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}}
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        launcher += ["--start-method", "fork", "--run-path"]  # in processes that have imported torch
        done = forked.run([sys.executable, *(launcher if processes > 1 else ()), *script], **options)
        assert done.returncode == 0, done.stderr
        assert learnt(done.stdout) == [(65536.0, 60, 0)]
        return float(re.search(r"process(?:es)?: test accuracy (\S+)", done.stdout)[1])

    return run


@torch
@pytest.mark.parametrize("arguments", [[], ["--shard"], ["--window", "2"]], ids=["ddp", "fsdp2", "windows"])
def test_several_processes_train_the_model_of_one(in_ranks, arguments):
    alone = in_ranks(1, *(each for each in arguments if each != "--shard"))
    assert alone > 0.9
    assert in_ranks(2, *arguments) == pytest.approx(alone, abs=0.01)


# -- TensorFlow --------------------------------------------------------------------------------------------------------


@tensorflow
def test_resnet50_in_fit(script):
    assert learnt(script("tensorflow/resnet50_fit.py")) == [(8 * 65536, 12, 0)]


@tensorflow
@pytest.mark.parametrize("arguments", [[], ["--xla", "--scale", "128"]], ids=["function", "xla"])
def test_resnet50_in_a_loop(script, arguments):
    assert learnt(script("tensorflow/resnet50_loop.py", *arguments)) == [(128.0 if arguments else 65536.0, 16, 0)]


@tensorflow
def test_a_rewritten_cnn(script):
    text = script("tensorflow/mnist_rewrite.py")
    assert learnt(text) == [(65536.0, 40, 0)]
    assert re.search(r"(?m)^rewrite, (native: .*compute in|no effect: no node of) ", text)


@tensorflow
def test_a_v1_session(script):
    ((scale, applied, _),) = learnt(script("tensorflow/v1_session.py"))
    assert (scale, applied) == (4 * 65536, 40)


@tensorflow
def test_workers_of_tf_config_train_the_model_of_one():
    train_alike("tensorflow/several_workers.py", of_tensorflow())


def train_alike(script, environments):
    """Run a script alone and on two workers: one reports, and gets the model of one process."""
    command = [str(EXAMPLES / script), "--smoke", "--policy", "float32"]
    (alone,) = run_together(command, [{}], 1)
    # MXNet gives rank 0 to whichever worker registers first.
    silent, together = sorted(run_together(command, environments, 2), key=len)
    assert not silent
    found = []
    for text, count in ((alone, "1 worker"), (together, "2 workers")):
        assert learnt(text) == [(65536.0, 60, 0)]
        found.append(float(re.search(rf"{count}: test accuracy (\S+)", text)[1]))
    assert found[0] > 0.8
    assert found[1] == pytest.approx(found[0], abs=0.01)


# -- MXNet -------------------------------------------------------------------------------------------------------------


@mxnet
def test_resnet50_in_gluon(script):
    assert learnt(script("mxnet/resnet50_gluon.py")) == [(4 * 65536, 30, 0)]


@mxnet
def test_workers_of_a_kvstore_train_the_model_of_one():
    train_alike("mxnet/several_workers.py", of_mxnet())


@mxnet
def test_conversion_for_inference(script, tmp_path):
    import unifiedamp as ua

    mixed = ua.Amp("mxnet", "float32").capabilities.policies["mixed_bfloat16"]
    if mixed:
        text = script("mxnet/convert_for_inference.py")
        assert int(re.search(r"(\d+) casts", text)[1]) > 0
    else:
        assert mixed.reason in script("mxnet/convert_for_inference.py", code=2)
        text = script("mxnet/convert_for_inference.py", "--policy", "float32")
    assert float(re.search(r"largest error (\S+)", text)[1]) < 0.1
    assert (tmp_path / "runs" / "resnet50-0000.params").stat().st_size > 10_000
