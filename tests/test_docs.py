"""What the README and the pages under docs/ say: their code runs, their links lead somewhere."""

import doctest
import re
import tomllib
from pathlib import Path

import numpy as np
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
IMPORTS = {"torch": "import torch", "tensorflow": "import tensorflow", "mxnet": "from mxnet"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def block_with(start: str) -> str:
    (found,) = [block for block in blocks(ROOT / "README.md", "python") if block.startswith(start)]
    return found


def batches(count: int):
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.standard_normal((32, 64), np.float32)
        yield x, (x[:, 0] > 0).astype(np.int32)


@pytest.mark.parametrize("name", [name for name in peers() if name in IMPORTS])
def test_the_readmes_loop_trains(name):
    ua.Amp(name, "float32")  # MXNet needs the layer's help to be imported
    space = {"batches": batches(20)}
    exec(block_with(IMPORTS[name]), space)
    losses = []
    make_loss = space["loss_fn"]
    loop = block_with("import unifiedamp").replace('ua.Amp("torch"', f'ua.Amp("{name}"')
    space["losses"] = losses
    exec(loop.rstrip() + "\n    losses.append(float(amp.to_numpy(loss).reshape(-1)[0]))\n", space)
    assert space["loss_fn"] is make_loss
    assert space["amp"].applied_steps == 20
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    space["amp"].close()


def test_the_page_on_averages_runs(capsys):
    pytest.importorskip("torch")
    (block,) = blocks(ROOT / "docs" / "ema.md", "python")
    space = {}
    exec(block, space)
    assert space["checkpoint"]["ema"][0]["updates"] == [10]
    assert "32, 1" in capsys.readouterr().out
    space["amp"].close()


def test_the_readmes_configuration_is_read(tmp_path, monkeypatch):
    (text,) = blocks(ROOT / "README.md", "toml")
    (tmp_path / "amp.toml").write_text(text.replace('"mxnet"', '"toy"'), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    space = {"ua": ua}
    exec(block_with("amp = ua.Amp.from_config"), space)
    assert space["amp"].loss_scale == 1024.0
    assert str(space["amp"].policy).startswith("mixed_bfloat16")


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
