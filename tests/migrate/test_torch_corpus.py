"""Listings in the shapes of public training scripts: migrated, they end with the weights that they ended with."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from migrating import identifiers, migrated
from old_torch import APEX, TORCH, apex_by_facade, apex_without_amp, sessions_on_cpu, text_of, torch_on_cpu, weights

# The same kernels run in the same order on the same numbers; float32 rounding is all that may differ.
SAME = {"rel": 1e-5, "abs": 1e-6}
# In one region both calls of a model share one float16 copy of its weights, and add their gradients in float16.
TWICE = {"rel": 1e-3, "abs": 1e-4}
CALLED_TWICE = {"gan_attributes", "gan_two_optimizers", "initialized_one_by_one"}
# Apex's O2 leaves the model with float16 copies of its weights, which the listing returns.
CAST = {"level_in_a_variable", "probabilities_behind_o2", "similarities_in_a_step_o2"}
# A prepared model returns float32, where torch's autocast leaves float16 to what comes behind it.
HALF = {"rel": 2e-3, "abs": 3e-4}


@pytest.mark.parametrize("flag", [True, False], ids=["flag on", "flag off"])
@pytest.mark.parametrize("name", APEX)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_apex(name, flag, monkeypatch):
    text = text_of("apex", name)
    with apex_by_facade(monkeypatch):
        old = weights(text, flag)
    done = migrated(text)
    assert done.changed, done.findings
    with apex_without_amp(monkeypatch), sessions_on_cpu(monkeypatch):
        new = weights(done.after.decode(), flag)
    assert new == pytest.approx(old, **(TWICE if name in CALLED_TWICE else HALF if name in CAST else SAME))
    assert not identifiers(done.after.decode()) & {"initialize", "master_params"}


@pytest.mark.parametrize("flag", [True, False], ids=["flag on", "flag off"])
@pytest.mark.parametrize("name", TORCH)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_torch_amp(name, flag, monkeypatch):
    text = text_of("torch_amp", name)
    with torch_on_cpu(monkeypatch):
        old = weights(text, flag)
    done = migrated(text)
    assert done.changed, done.findings
    with sessions_on_cpu(monkeypatch):
        new = weights(done.after.decode(), flag)
    assert new == pytest.approx(old, **(HALF if flag else SAME))
    assert "GradScaler" not in identifiers(done.after.decode())
