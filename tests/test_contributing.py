"""What CONTRIBUTING.md tells a newcomer is there: each path that "How to add" names, and each session."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
THINGS = {
    "a policy name", "a rule of the loss-scale transition", "an operation", "a capability", "a device kind of torch",
    "a command",
}  # fmt: skip


def rows(heading):
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    table = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return {first: rest for first, *rest in table[2:]}


def test_the_six_changes_are_there():
    assert set(rows("How to add")) == THINGS


@pytest.mark.parametrize("thing", sorted(THINGS))
def test_the_files_of_a_change_are_there(thing):
    where, proof = (re.findall(r"`([^`]+/[^`]+)`", cell) for cell in rows("How to add")[thing])
    assert 1 <= len(where) <= 3
    assert len(proof) == 1
    for path in where + proof:
        folders = [ROOT, *(ROOT / "backends").glob("unifiedamp_*")] if path in where else [ROOT]
        assert any((folder / path).exists() for folder in folders), path


def test_the_sessions_are_those_of_the_noxfile():
    there = set(re.findall(r"^def (tests\w*)\(", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE))
    assert {name.strip("`") for name in rows("Environments")} == there
