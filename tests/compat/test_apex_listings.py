"""The articles' own lines, with their import line replaced, train."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

LISTINGS = sorted((Path(__file__).parents[1] / "listings").glob("apex_*.py"))
RUN = {}


def run(path, steps):
    """Return a listing's losses."""
    text = path.read_text(encoding="utf-8")
    assert text.count("from apex import amp\n") == 1
    names = {"__name__": path.stem}
    code = text.replace("from apex import amp\n", "from unifiedamp.compat import apex as amp\n")
    exec(compile(code, str(path), "exec"), names)
    return names["train"](steps)


@pytest.mark.parametrize("path", LISTINGS, ids=lambda path: path.stem)
def test_the_loss_falls(path):
    losses = run(path, 60)
    assert len(losses) == 60
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_going_on_from_a_checkpoint_is_going_on(monkeypatch):
    (path,) = [path for path in LISTINGS if path.stem == "apex_resume"]
    names = {}
    exec(
        path.read_text(encoding="utf-8").replace("from apex import amp", "from unifiedamp.compat import apex as amp"),
        names,
    )
    model, optimizer = names["start"]("O1")
    assert names["train"](20) == names["run"](model, optimizer, 20)
