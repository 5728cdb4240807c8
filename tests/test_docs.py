"""What the README and the pages under docs/ say: their code runs, their links lead somewhere."""

import doctest
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import unifiedamp as ua
from unifiedamp.conformance.plugin import peers

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run_alone(code: str, folder: Path, **environment: str) -> str:
    """Run code as a user who has pasted it into a file; return what it prints."""
    path = folder / "pasted.py"
    path.write_text(code, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UNIFIEDAMP_")}
    done = subprocess.run(
        [sys.executable, path.name], capture_output=True, text=True, timeout=300, check=False, cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "unifiedamp.errors" not in done.stderr, done.stderr  # a warning of ours
    assert "NoGainWarning" not in done.stderr, done.stderr
    return done.stdout


def without_ignores(code: str) -> str:
    return re.sub(r"  # type: ignore.*", "", code)


QUICKSTARTS = {"torch": "pytorch.py", "tensorflow": "tensorflow_keras.py", "mxnet": "gluon.py"}
INSTALLED = [name for name in peers() if name in QUICKSTARTS]


def quickstart(backend: str) -> str:
    return (ROOT / "examples" / "quickstart" / QUICKSTARTS[backend]).read_text(encoding="utf-8")


@pytest.mark.parametrize("backend", INSTALLED)
def test_the_quickstart_learns(backend, tmp_path):
    said = run_alone(quickstart(backend), tmp_path)
    losses = [float(loss) for loss in re.findall(r"epoch \d+: loss (\S+)", said)]
    (accuracy,) = re.findall(r"policy (?:\S+): ([\d.]+)% of 297 test images", said)
    assert len(losses) == 5
    assert losses[-1] < 0.2 * losses[0]
    assert float(accuracy) > 90


@pytest.mark.parametrize("backend", QUICKSTARTS)
def test_the_quickstarts_have_one_loop(backend):
    """What differs from torch's is data layout, model, optimizer and loss; the calls of the session are the same."""
    ours = [line.split("  #")[0] for line in quickstart(backend).splitlines() if "amp." in line and "Amp(" not in line]
    same = [line.split("  #")[0] for line in quickstart("torch").splitlines() if "amp." in line and "Amp(" not in line]
    known = ("# Loop. With @amp.compile above it", "@amp.compile")
    assert [line for line in ours if not line.startswith(known)] == [
        line for line in same if not line.startswith(known)
    ]


def test_the_readme_shows_a_quickstart():
    first, *_ = blocks(ROOT / "README.md", "python")
    _, _, code = without_ignores(quickstart("torch")).partition('"""\n\n')
    assert first == code
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"(examples/quickstart/{name})" in text for name in QUICKSTARTS.values())


def readme_runs():
    """Return (block, backend) of each Python block; one that imports torch, whose peers are quickstarts, runs on it."""
    found = []
    for number, code in enumerate(blocks(ROOT / "README.md", "python")):
        alone = "import torch\n" in code
        found += [pytest.param(code, name, id=f"{number}-{name}") for name in INSTALLED if name == "torch" or not alone]
    return found


@pytest.mark.parametrize(("code", "backend"), readme_runs())
def test_each_block_of_the_readme_runs_alone(code, backend, tmp_path):
    (configuration,) = blocks(ROOT / "README.md", "toml")
    (tmp_path / "amp.toml").write_text(configuration, encoding="utf-8")
    assert run_alone(code, tmp_path, UNIFIEDAMP_BACKEND=backend)


def test_the_page_on_averages_runs(capsys):
    pytest.importorskip("torch")
    (block,) = blocks(ROOT / "docs" / "ema.md", "python")
    space = {}
    exec(block, space)
    assert space["checkpoint"]["ema"][0]["updates"] == [10]
    assert "32, 1" in capsys.readouterr().out
    space["amp"].close()


def test_the_readmes_configuration_is_read(tmp_path):
    (text,) = blocks(ROOT / "README.md", "toml")
    (tmp_path / "amp.toml").write_text(text.replace('"torch"', '"toy"'), encoding="utf-8")
    amp = ua.Amp.from_config(tmp_path / "amp.toml")
    assert amp.loss_scale == 1024.0
    amp.close()


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_tables_of_settings_parse(page):
    for text in blocks(page, "toml"):
        assert tomllib.loads(text)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_examples_give_what_they_show(page):
    text = "".join(blocks(page, "pycon"))
    example = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    result = doctest.DocTestRunner(verbose=False).run(example)
    assert result.attempted == text.count(">>> ")
    assert not result.failed


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    for target in re.findall(r"`((?:benchmarks|ci|docs|examples|scripts|unifiedamp)/[\w./]*\w)`", text):
        assert (ROOT / target).exists(), target
