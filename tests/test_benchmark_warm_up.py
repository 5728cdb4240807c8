"""benchmarks/warm_up.py: its models train, each side runs with an empty cache and then with a filled one."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def warm_up(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent))
    import warm_up

    yield warm_up
    sys.modules.pop("warm_up")


@pytest.mark.parametrize("model", ["ViT-S/16", "U-Net 128"])
def test_the_models_train(warm_up, model):
    loop = warm_up.build(model, "off", smoke=True)
    first = float(loop.step().detach())
    assert warm_up.first_steps(loop) > 0
    assert float(loop.step().detach()) < first


def test_forms_take_turns_and_ratios_compare_like_with_like(warm_up, monkeypatch):
    seconds = {("torch.compile", False): 10.0, ("max", False): 12.0, ("torch.compile", True): 2.0, ("max", True): 3.0}
    ran, known = [], set()

    def timed(name, form, smoke, cache):
        filled = cache in known
        known.add(cache)
        ran.append((form, filled))
        return seconds[form, filled]

    monkeypatch.setattr(warm_up, "timed", timed)
    rows = [*warm_up.measure("U-Net 128", SimpleNamespace(forms=("max",), pairs=2, smoke=True))]
    native, ours = [("torch.compile", False), ("torch.compile", True)], [("max", False), ("max", True)]
    assert ran == native + ours + ours + native
    assert [(row.labels["cache"], row.ratio, row.first_ms) for row in rows] == [
        ("empty", 1.2, 12e3),
        ("filled", 1.5, 3e3),
    ]
