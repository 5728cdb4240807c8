"""The files that ``unifiedamp compare`` writes: JSON, Markdown, and a page that needs nothing else."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from page_checks import checked

from unifiedamp.workloads.compare.page import html
from unifiedamp.workloads.compare.plots import drawings
from unifiedamp.workloads.compare.rows import Row, Task
from unifiedamp.workloads.compare.write import COLUMNS, markdown

ABOUT = dict.fromkeys(("title", "machine", "versions", "date", "command"), "about")


def test_the_files_hold_what_is_printed(command, fake):
    done = command("compare", "digits_conv", "--policies", "float32,mixed_bfloat16", "--rounds", 1, "--profile")
    folder = Path("runs/compare-digits_conv")
    saved = json.loads((folder / "compare.json").read_text())
    page = (folder / "compare.md").read_text()
    assert saved["schema"] == "unifiedamp-compare"
    assert {"machine", "versions", "date", "command"} <= set(saved)
    for row in saved["rows"]:
        line = next(line for line in page.splitlines() if f"| {row['policy']} |" in line)
        assert f"{row['accuracy']:.2%}" in line
        assert "1024 MiB" in line
        assert "75% in Tensor Cores" in line
        assert row["tensor_cores"]["share"] == 0.75
        assert row["losses"] == [2.0, None, 1.0]
    assert saved["advice"][0] in page
    assert saved["advice"][0] in done.out


def page_of(folder="runs/compare-digits_conv"):
    return checked((Path(folder) / "compare.html").read_text(encoding="utf-8"))


def test_the_page_needs_nothing_else(command, fake):
    command("compare", "digits_conv", "--policies", "float32,mixed_bfloat16", "--rounds", 1)
    page = page_of()
    assert len(page.drawings) == 3, "speeds, losses and scales"
    assert len(page.all("tr")) == 3
    assert "2.00 (2.00-2.00)" in page.words


def test_each_cell_says_which_column_it_is_of(command, fake):
    """Where rows become records, on a phone and on narrow paper, no column is lost."""
    command("compare", "digits_conv", "--policies", "float32,mixed_bfloat16", "--rounds", 1)
    page = page_of()
    labels = [attrs["data-label"] for name, attrs in page.tags if name in ("td", "th") and "data-label" in attrs]
    assert page.cells[0] == list(COLUMNS)
    assert labels == 2 * list(COLUMNS)
    assert "display: none" not in page.style


def test_compile_time_has_a_column_everywhere(command, fake):
    """It is in no other figure: the speed is that of the timed rounds."""
    done = command("compare", "digits_conv", "--policies", "float32", "--rounds", 1)
    folder = Path("runs/compare-digits_conv")
    (row,) = json.loads((folder / "compare.json").read_text())["rows"]
    assert (row["compile_seconds"], row["samples_per_second"]) == (12.5, 100.0)
    place = COLUMNS.index("compile s")
    heading, _, cells = [line for line in (folder / "compare.md").read_text().splitlines() if line.startswith("|")]
    assert (heading.split("|")[place + 1].strip(), cells.split("|")[place + 1].strip()) == ("compile s", "12.5")
    assert page_of().cells[1][place] == "12.5"
    assert "compile s" in done.out
    assert "12.5" in done.out


def rows_of(*names, backend="torch", **changes):
    curves = {"losses": [1.0, None, 0.5], "scales": [[1, 2.0, 0], [2, 4.0, 0]], "ratio": 1.0}
    curves |= {"ratio_low": 1.0, "ratio_high": 1.0}
    timed = {"batch_size": 8, "rates": [1.0, 2.0], "samples_per_second": 1.5}
    return [Row(Task(backend, name, "off", 8), **(timed | curves | changes)) for name in names]


def test_plots_show_the_rows():
    rows = rows_of("float32", "mixed_float16")
    page = checked(html(rows, ABOUT, []))
    assert [drawing.split("\n")[1] for drawing in page.drawings] == ["Samples per second", "Loss", "Loss scale"]
    for drawing in page.drawings:
        assert all(f"torch {row.task.policy}" in drawing for row in rows), "the text is text"
    assert "torch float32 from 1 to 0.5" in page.drawings[1], "in words, for those who cannot see the curve"
    rows[0].scales = rows[1].scales = [[1, 1.0, 0]]
    assert [one.title for one in drawings(rows)] == ["Samples per second", "Loss"], (
        "a scale that is always 1 is no plot"
    )


def curves_of(page, title):
    """What the legend of a plot shows: label → (color, dash, marker)."""
    (found,) = [one for one in drawings(page) if one.title == title]
    looks = {}
    for key in found.keys:
        line, marker = (shape.attributes for shape in key.shapes)
        form = re.sub(r"^M[-\d. ]+", "", marker["d"])
        looks[key.label] = (line["class"], line.get("stroke-dasharray", ""), form + marker["class"].split()[0])
    return looks


@pytest.mark.parametrize(
    ("backends", "modes"),
    [(("torch", "tensorflow"), ("off",)), (("torch",), ("off", "max")), (("a", "b", "c"), ("off", "max"))],
)
def test_the_legend_tells_curves_apart_without_colors_too(backends, modes):
    policies = ("float32", "mixed_bfloat16", "mixed_float16")
    rows = [
        replace(row, task=replace(row.task, compile=mode))
        for backend in backends
        for mode in modes
        for row in rows_of(*policies, backend=backend)
    ]
    looks = curves_of(rows, "Loss")
    assert len(looks) == len(rows) >= 6
    assert len({(dash, marker) for _, dash, marker in looks.values()}) == len(rows)
    assert len({color for color, _, _ in looks.values()}) == len(policies)


@pytest.mark.parametrize(
    "losses",
    [[-1.0, 0.0, 2.0], [0.0], [3.0, 3.0], [1e308, -1e308, 5e-324], [None, None], [1.0, None, float("nan")]],
    ids=str,
)
def test_a_loss_that_no_logarithm_has_is_drawn(losses):
    """Losses of some models are negative or 0, all alike, huge, or never finite."""
    page = checked(html(rows_of("float32", losses=losses), ABOUT, []))
    assert "No plots" not in page.words
    assert len(page.drawings) == (2 if losses == [None, None] else 3)
    assert not re.search(r"[ML ](nan|-?inf)", "".join(attrs["d"] for attrs in page.all("path")))


def test_without_matplotlib_the_page_has_its_plots(command, fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setenv("MPLBACKEND", "no_such_backend")
    done = command("compare", "digits_conv", "--policies", "float32", "--rounds", 1)
    assert done.code == 0
    assert len(page_of().drawings) == 3


def test_what_comes_from_outside_is_escaped(command, fake, tmp_path):
    about = dict.fromkeys(("title", "machine", "versions", "date", "command"), "<b>&")
    text = html([Row(Task("<x>", "float32", "off", 1), "failed", "<script>alert(1)</script>")], about, ["<i>"])
    assert "<script>" not in text
    assert "<x>" not in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert "&lt;script&gt;" in text


HOSTILE = "</td><script>\x1b[2J\u202e\ud800`|$\\frac{\x07"


def test_names_are_shown_and_never_obeyed(tmp_path):
    about = dict.fromkeys(("title", "machine", "versions", "date", "command"), HOSTILE)
    timed = Row(Task("toy", HOSTILE, "off", 8), batch_size=8, rates=[1.0], samples_per_second=1.0, losses=[1.0, 0.5])
    rows = [timed, Row(Task(HOSTILE, "float32", "off", 1), "failed", HOSTILE)]
    for name, text in (("x.html", html(rows, about, [HOSTILE])), ("x.md", markdown(rows, about, [HOSTILE]))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert r"\x1b[2J\u202e\ud800" in text
        assert not set(text) & set("\x1b\u202e\ud800\x07")
        assert "<script" not in text.replace(f"`{HOSTILE[:13]}", "")
    assert HOSTILE[:13] in checked(html(rows, about, [HOSTILE])).words
