"""Each block of docs/trainers.md runs as it is pasted."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

import probes

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
BLOCKS = {
    section.partition("\n")[0]: block
    for section in SECTIONS
    for block in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
}
NEEDS = {
    "Lightning's Trainer": "lightning",
    "Fabric": "fabric",
    "Accelerate": "accelerate",
    "Hugging Face's Trainer": "transformers",
}


def test_every_trainer_has_a_block():
    assert set(NEEDS) <= set(BLOCKS)


@pytest.mark.parametrize("title", BLOCKS)
def test_block(title, capsys):
    pytest.importorskip("torch")
    if NEEDS.get(title, "") not in ("", *probes.HOSTS):
        pytest.skip(f"{NEEDS[title]} is not installed")
    space = {}
    exec(compile(BLOCKS[title], f"{PAGE.name}: {title}", "exec"), space)
    if title in NEEDS:
        assert capsys.readouterr().out.strip()
