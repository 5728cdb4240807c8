"""Loops over torch.amp, migrated, give the losses that they gave."""

from __future__ import annotations

import pytest

pytest.importorskip("torch.nn")  # tests/torch is a folder of that name
from migrating import identifiers, listing, migrated, run

# The same kernels run in the same order on the same numbers; float32 rounding is all that may differ.
SAME = {"rel": 1e-6, "abs": 1e-7}


@pytest.mark.parametrize("name", ["torch_amp", "torch_amp_functions", "torch_amp_gan"])
def test_the_losses_are_those_of_the_old_code(name):
    done = migrated(listing(name))
    text = done.after.decode()
    assert not {word for word in identifiers(text) if "scaler" in word.lower()}
    old, new = run(listing(name), 6), run(text, 6)
    assert len(set(old)) > 3
    assert new == pytest.approx(old, **SAME)
