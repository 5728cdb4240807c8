"""What docs/workloads.md says: its file trains as pasted, and its configuration is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from own_files import run

from unifiedamp.workloads.configuration import read_settings, read_source

PAGE = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")


@pytest.fixture
def page(tmp_path):
    """A folder that holds the page's file and configuration."""
    for language, name in (("python", "my_model.py"), ("toml", "my_model.toml")):
        (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_file_trains_as_pasted(page):
    pytest.importorskip("torch")
    done = run(page / "my_model.py", page / "out", epochs=3)
    losses = [row["loss"] for row in done.history.epochs]
    assert losses[-1] < 0.2 * losses[0]
    again = run(page / "my_model.py", page / "out", epochs=4, resume=True)
    assert again.history.epochs[-1]["applied_steps"] == 128


def test_the_configuration_is_of_that_file(page):
    settings = read_settings(read_source(str(page / "my_model.toml")))
    assert settings.workload.path.samefile(page / "my_model.py")
    assert settings.given == {"hidden": 256}
    assert (settings.train.epochs, settings.train.compile, settings.amp["accumulate_steps"]) == (5, True, 2)
