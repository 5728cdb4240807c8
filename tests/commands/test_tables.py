"""Tables of commands on terminals of 60, 80 and 120 columns: nothing is cut, nothing is lost; verdicts are colored."""

from __future__ import annotations

import importlib
import io
import re

import pytest
from command_runs import CONV, installed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from unifiedamp.cli.show import say
from unifiedamp.cli.tables import EMPTY, FoldingTable, tone_of

WIDTHS = [60, 80, 120]
DOCTOR = {
    "unifiedamp": "0.1.0", "python": "3.11.9", "system": "Linux 6.1 x86_64", "gpus": [],
    "launchers": {"torchrun": "/bin/torchrun", "srun": None}, "launched_by": None, "links": {"pairs": [], "reason": ""},
    "cpu": {"name": "a processor", "units": [], "vectors": "AVX2"},
    "backends": {
        "torch": {
            "framework": "torch", "installed": True, "version": "2.13.0", "device": "cuda:0", "reason": "",
            "failed": "", "install": "", "best": "mixed_bfloat16", "best_reason": "the GPU has Tensor Cores for it",
            "policies": {
                "float32": {"ok": True, "helps": None, "reason": ""},
                "mixed_bfloat16": {"ok": True, "helps": False,
                                   "reason": "this processor has no 16-bit units, so casts cost more than they gain"},
                "float16": {"ok": False, "helps": None, "reason": "trainable float16 parameters are refused"},
            },
            "speed": {"float32": {"ms": 12.5}, "mixed_bfloat16": {"ms": 10.0, "value": 1.25, "low": 1.2, "high": 1.3}},
        },
        "mxnet": {"framework": "mxnet", "installed": True, "version": "1.9.1", "failed": "a process died (SIGSEGV)",
                  "reason": "a process died (SIGSEGV)", "install": "pip install mxnet"},
    },
}  # fmt: skip


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard output a terminal of some columns; ``terminal.tables`` are those that were made since."""

    def widen(columns, colors=False):
        for name, value in (("TTY_COMPATIBLE", "1"), ("COLUMNS", columns), ("TERM", "xterm-256color")):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("NO_COLOR", "1") if not colors else monkeypatch.delenv("NO_COLOR", raising=False)

    made = FoldingTable.__init__

    def init(self, title, columns, rows, *rest, **more):
        rows = [[str(cell) for cell in row] for row in rows]
        widen.tables.append((title, list(columns), rows))
        made(self, title, columns, rows, *rest, **more)

    widen.tables = []
    monkeypatch.setattr(FoldingTable, "__init__", init)
    return widen


def plain(text):
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def check(done, tables, width):
    """No line is wider than the terminal; each word of each cell is there, whole; each column has its name."""
    assert tables, done
    out = done.out
    too_wide = [line for line in plain(out).splitlines() if cell_len(line) > width]
    assert [line for line in too_wide if " " in line.strip()] == [], "but for a word that is no shorter"
    words = set(plain(out).split())
    for title, columns, rows in tables:
        assert set(title.split()) <= words
        for row in rows:
            assert {word for cell in row if cell not in EMPTY for word in cell.split() if len(word) < 40} <= words
        shown = {name for place, name in enumerate(columns) if any(row[place] not in EMPTY for row in rows)}
        headed = set(columns[:4])  # in a record, the heading has no labels
        assert {word for name in shown - headed for word in name.split()} <= words


@pytest.mark.parametrize("width", WIDTHS)
def test_compare(command, fake, terminal, width):
    terminal(width)
    done = command("compare", CONV, "--policies", "float32,mixed_bfloat16,bfloat16", "--rounds", 1)
    check(done, terminal.tables, width)
    assert "torch" not in done.out
    assert "toy mixed_bfloat16 default 64" in plain(done.out)


@pytest.mark.parametrize("width", WIDTHS)
def test_tune(command, fake, terminal, width):
    terminal(width)
    policies = "mixed_bfloat16,mixed_float16"
    done = command("tune", CONV, "--backend", "toy", "--policies", policies, "--out", "tuned.toml")
    assert done.code == 0
    check(done, terminal.tables, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_doctor(command, terminal, monkeypatch, width):
    monkeypatch.setattr(importlib.import_module("unifiedamp.cli.doctor"), "examine", lambda *_: DOCTOR)
    terminal(width)
    done = command("doctor")
    check(done, terminal.tables, width)
    assert [title for title, _, _ in terminal.tables] == ["Frameworks", "Policies"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.skipif(not installed(), reason="needs a backend that the recipe has models for")
def test_explain(command, terminal, width):
    terminal(width)
    done = command("explain", CONV, "--backend", installed()[0], "--policy", "float32")
    assert done.code == 0
    check(done, terminal.tables, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_mutants(terminal, monkeypatch, capsys, width):
    from unifiedamp.cli import mutants
    from unifiedamp.conformance.mutants import KILLED, SURVIVED, Outcome, Report

    outcomes = [
        Outcome("scale-doubled", "the scale is doubled at each step", KILLED, "test_scale.py::test_growth[eager]"),
        Outcome("masters-lost", "master weights are not copied to the parameters", SURVIVED, ""),
    ]
    report = Report(backend="toy", forms=("eager",), tests=3, outcomes=outcomes, failing=[], untested={})
    monkeypatch.setattr(mutants, "run_faults", lambda *_: report)
    terminal(width)
    assert mutants.run("toy", ["eager"], [], None) == 1
    check(capsys.readouterr(), terminal.tables, width)


def shown(table, width, **options):
    out = Console(file=io.StringIO(), width=width, highlight=False, **options)
    out.print(table)
    return out.file.getvalue()


CELL = st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=60)


@example(51, [["000\u3000", "0" * 23 + "\u1100\u1100\u3000\u3000", "", "", "1"]])  # a number as wide as a sentence
@settings(max_examples=200, deadline=None)
@given(st.integers(20, 200), st.lists(st.lists(CELL, min_size=5, max_size=5), max_size=4))
def test_any_cells_fit_any_terminal(width, rows):
    """Brackets are no markup, wide letters count twice; of what is not empty, every letter is there."""
    text = shown(FoldingTable("title", "abcde", rows, right="b", verdicts="c"), width)
    assert max(map(cell_len, text.splitlines())) <= width
    missing = [
        letter
        for row in rows
        for cell in row
        if cell not in EMPTY
        for letter in cell
        if not letter.isspace() and text.count(letter) == 0
    ]
    assert missing == []


def test_records_have_one_layout():
    """A value stands at the same place in all records, so that an eye can run down it."""
    rows = [("a", "1", "short", "x" * 30), ("b", "1000000", "s", "y")]
    lines = shown(FoldingTable("t", ("name", "count", "word", "why"), rows), 34).splitlines()
    assert lines == [
        "t", "",
        "a", "  count 1         word  short", "  why   " + "x" * 26, "        " + "x" * 4, "",
        "b", "  count 1000000   word  s", "  why   y", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [
        ("done", "good"), ("done, 79% in Tensor Cores", "good"), ("runs", "good"), ("runs but gains nothing", "warn"),
        ("cannot", "bad"), ("failed: worker died", "bad"), ("SURVIVED", "bad"), ("refused", "warn"),
        ("no effect", "warn"), ("test_killed.py", ""), ("loss 2.1 against float32's 1.0", ""), ("", ""),
    ],
)  # fmt: skip
def test_verdicts_have_a_tone(verdict, tone):
    assert tone_of(verdict) == tone


@pytest.mark.parametrize("width", [200, 60])
def test_verdicts_are_colored_as_table_and_as_record(command, fake, terminal, width):
    terminal(width, colors=True)
    out = command("compare", CONV, "--policies", "float32,bfloat16", "--rounds", 1).out
    assert re.search(r"\x1b\[32mdone *\x1b\[0m", out)
    assert re.search(r"\x1b\[1;31mfailed *\x1b\[0m", out)


def test_output_that_goes_elsewhere_is_a_table_without_colors(command, fake, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = command("compare", CONV, "--policies", "float32", "--rounds", 1).out
    assert "\x1b" not in out
    assert re.search(r"backend +policy +compile +batch", out)


@pytest.mark.parametrize(("terminal", "lines"), [(True, 2), (False, 1)])
def test_sentences_wrap_at_spaces_on_a_terminal_only(terminal, lines):
    path = "/a/path/" + "x" * 60
    out = Console(file=io.StringIO(), width=40, force_terminal=terminal, color_system=None)
    say(out, f"the files that were written are all in {path}")
    found = out.file.getvalue().splitlines()
    assert len(found) == lines
    assert found[-1].endswith(path), "a path can be copied"
    say(out, "+    code = that is(longer, than=the, terminal)  # and is no sentence", wrap=False)
    assert len(out.file.getvalue().splitlines()) == lines + 1
