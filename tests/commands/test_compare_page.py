"""The files that ``unifiedamp compare`` writes: JSON, Markdown, and a page that needs nothing else."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path

from command_runs import CONV


def test_the_files_hold_what_is_printed(command, fake):
    done = command("compare", CONV, "--policies", "float32,mixed_bfloat16", "--rounds", 1, "--profile")
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


class Page(HTMLParser):
    """Collects tags and what they refer to."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.references, self.words = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.words += data


def test_the_page_needs_nothing_else(command, fake):
    command("compare", CONV, "--policies", "float32,mixed_bfloat16", "--rounds", 1)
    page = Page((Path("runs/compare-digits_conv") / "compare.html").read_text())
    assert "script" not in page.tags
    assert all(reference.startswith("data:") for reference in page.references)
    assert page.tags.count("img") == 3, "speeds, losses and scales"
    assert page.tags.count("tr") == 3
    assert "2.00 (2.00-2.00)" in page.words


def test_pictures_show_the_rows(command, fake):
    from unifiedamp.workloads.compare.plots import pictures
    from unifiedamp.workloads.compare.rows import Row, Task

    curves = {"losses": [1.0, None, 0.5], "scales": [[1, 2.0, 0], [2, 4.0, 0]]}
    rows = [
        Row(Task("torch", name, "off", 8), batch_size=8, rates=[1.0, 2.0], samples_per_second=1.5, ratio=1.0, **curves)
        for name in ("float32", "mixed_float16")
    ]
    drawn = pictures(rows)
    assert list(drawn) == ["Samples per second", "Loss", "Loss scale"]
    for svg in drawn.values():
        assert all(f"torch {row.task.policy}" in svg for row in rows), "the text is text"
    rows[0].scales = rows[1].scales = [[1, 1.0, 0]]
    assert list(pictures(rows)) == ["Samples per second", "Loss"], "a scale that is always 1 is no picture"


def test_without_matplotlib_the_page_says_so(command, fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = command("compare", CONV, "--policies", "float32", "--rounds", 1)
    assert done.code == 0
    text = (Path("runs/compare-digits_conv") / "compare.html").read_text()
    assert "matplotlib is not installed (pip install matplotlib)" in text


def test_what_comes_from_outside_is_escaped(command, fake, tmp_path):
    from unifiedamp.workloads.compare.page import html
    from unifiedamp.workloads.compare.rows import Row, Task

    about = dict.fromkeys(("title", "machine", "versions", "date", "command"), "<b>&")
    text = html([Row(Task("<x>", "float32", "off", 1), "failed", "<script>alert(1)</script>")], about, ["<i>"])
    assert "<script>" not in text
    assert "<x>" not in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert "&lt;script&gt;" in text


HOSTILE = "</td><script>\x1b[2J\u202e\ud800`|$\\frac{\x07"


def test_names_are_shown_and_never_obeyed(tmp_path):
    from unifiedamp.workloads.compare.page import html
    from unifiedamp.workloads.compare.rows import Row, Task
    from unifiedamp.workloads.compare.write import markdown

    about = dict.fromkeys(("title", "machine", "versions", "date", "command"), HOSTILE)
    timed = Row(Task("toy", HOSTILE, "off", 8), batch_size=8, rates=[1.0], samples_per_second=1.0, losses=[1.0, 0.5])
    rows = [timed, Row(Task(HOSTILE, "float32", "off", 1), "failed", HOSTILE)]
    for name, text in (("x.html", html(rows, about, [HOSTILE])), ("x.md", markdown(rows, about, [HOSTILE]))):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert r"\x1b[2J\u202e\ud800" in text
        assert not set(text) & set("\x1b\u202e\ud800\x07")
        assert "<script" not in text.replace(f"`{HOSTILE[:13]}", "")
