"""``amp.record`` counts every value of every gradient in the right place."""

import math
import struct

import numpy as np
import pytest

from unifiedamp.conformance.driver import probe_run
from unifiedamp.conformance.recorded import Kept, batch, layers, mlp_run

pytestmark = pytest.mark.needs("recording")


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


VALUES = (0.0, 1.0, -1.5, 2.0**-24, 2.0**-24 * 0.999, 2.0**-14, 2.0**-15, 3e-20, 65504.0, 65505.0, 70000.0, 2.0**-30)


@pytest.mark.parametrize("scale", [1.0, 2.0**10, 1000.0])
def test_each_value_is_counted_where_it_belongs(harness, form, scale):
    """Against plain Python: the gradient of ``w_i`` is ``x_i``, scaled in float32."""
    # Dividing by 1000 rounds, so values stay clear of the powers of two then.
    values = VALUES if scale != 1000.0 else [1.1 * value for value in VALUES]
    run = probe_run(harness, form, values=(0.0,) * len(values), loss_scale=scale)
    kept = Kept()
    with run.amp.record(kept):
        run.feed(*values)
    (record,) = kept.of("step")
    assert record["scale"] == scale
    assert len(record["gradients"]) == len(values)
    for i, value in enumerate(values):
        true = abs(as_float32(value))
        for which, size in (("true", true), ("scaled", as_float32(true * scale))):
            told = record["gradients"][f"w{i}"][which]
            exponents = {} if size == 0 else {str(math.frexp(size)[1] - 1): 1}
            assert told == {
                "zero": int(size == 0), "inf": 0, "nan": 0, "overflow": int(size > 65504),
                "flushed": int(0 < size < 2.0**-24), "subnormal": int(2.0**-24 <= size < 2.0**-14),
                "exponents": exponents,
            }, (value, which)  # fmt: skip


def test_every_value_of_a_gradient_is_counted(harness, form):
    amp, _, optimizer, feed = mlp_run(harness, form, layers(4, 16, 3), loss_scale=256.0)
    kept = Kept()
    with amp.record(kept):
        feed(batch())
    gradients = kept.of("step")[0]["gradients"]
    sizes = [sum(g["scaled"]["exponents"].values()) + g["scaled"]["zero"] for g in gradients.values()]
    assert sorted(sizes) == [3, 16, 48, 64]
    for gradient in gradients.values():
        shifted = {str(int(e) - 8): count for e, count in gradient["scaled"]["exponents"].items()}
        assert gradient["true"]["exponents"] == shifted
    assert amp.gradients(optimizer) == {}


def test_inf_and_nan_are_counted_apart(harness, form):
    run = probe_run(harness, form, values=(1.0, 1.0, 1.0), loss_scale=4.0)
    kept = Kept()
    with run.amp.record(kept):
        run.feed(math.inf, math.nan, 1.0)
    told = {name: g["scaled"] for name, g in kept.of("step")[0]["gradients"].items()}
    assert [(told[f"w{i}"]["inf"], told[f"w{i}"]["nan"]) for i in range(3)] == [(1, 0), (0, 1), (0, 0)]


def test_a_layer_that_is_called_twice_is_told_by_its_largest(harness):
    """In one step; it is the first call's here. Where runs are compared, each call has a row."""
    amp, model, optimizer, _ = mlp_run(harness, "eager", layers(4, 2), loss_scale=4.0)
    x, y = batch(), np.zeros((8, 2), np.float32)
    first, second, target = map(amp.to_native, (16 * x, x, y))
    kept, compares = Kept(), amp.backend.recorder.compares
    with amp.record(kept, compare=compares):
        amp.backward(
            lambda: harness.mean_square(model(first), target) + harness.mean_square(model(second), target), optimizer
        )
        amp.step(optimizer)
    rows = [row for row in kept.of("step")[0]["activations"] if (row["layer"], row["place"]) == ("layer0", "output")]
    largest = float(np.abs(x @ layers(4, 2)[0][0]).max())
    assert [row["largest"] for row in rows] == pytest.approx([16 * largest], rel=1e-2)
    if compares:
        rows = kept.of("step")[0]["compare"]["layers"]
        assert [(row["layer"], row["place"]) for row in rows].count(("layer0", "output")) == 2
