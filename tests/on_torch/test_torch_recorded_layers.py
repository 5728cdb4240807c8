"""Layers of steps that Inductor compiles in mode "max" are recorded inside what it compiles."""

import functools

import pytest
import torch
from loops import session, weights
from torch._dynamo.utils import counters

from unifiedamp.conformance.recorded import Kept

nn = torch.nn


class Doubles(nn.Module):
    """Multiplies by 2 where it is compiled, so that a step which runs uncompiled computes other numbers."""

    def forward(self, x):
        return x * (2 if torch.compiler.is_compiling() else 1)


class DoublesAlways(nn.Module):
    def forward(self, x):
        return x * 2


def run_of(form, middle, every=None, window=1, whole=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), middle(), nn.Linear(8, 4))
    amp, kept, graphs = session("float32", loss_scale=4.0, accumulate_steps=window, compile=form), Kept(), []
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    called = model if whole is None else whole(model)

    @amp.compile
    def step(x):
        loss = amp.backward(lambda: (called(x) * 1.5).square().mean(), optimizer)
        amp.step(optimizer)
        return loss

    recorder = every and amp.record(kept, every=every)
    for seed in range(5 * window):
        step(torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)))
        graphs.append(counters["stats"]["unique_graphs"])
    if recorder:
        recorder.stop()
    return kept.of("step"), weights(model), graphs


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("window", [1, 2])
def test_what_is_recorded_is_what_trains(window):
    """Steps 1, 2 and 4 are recorded; their graphs are made once."""
    records, trained, graphs = run_of("max", Doubles, every=2, window=window)
    expected, wanted, _ = run_of("off", DoublesAlways, every=2, window=window)
    assert [each["step"] for each in records] == [each["step"] for each in expected] == [1, 2, 4]
    for one, other in zip(records, expected, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        rows, others = ([tuple(row[key] for key in ("layer", "place", "dtype")) for row in each["activations"]]
                        for each in (one, other))  # fmt: skip
        assert rows == others
        largest, exact = ([row["largest"] for row in each["activations"]] for each in (one, other))
        assert largest == pytest.approx(exact, rel=1e-5)
    for one, other in zip(trained, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert graphs[-1] == graphs[3 * window - 1]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("of", ["layer", "model"])
def test_what_the_user_compiled_is_recorded_too(of):
    """Its compiled code has no hooks."""
    wrap = functools.partial(torch.compile, backend="eager")
    middle, whole = (lambda: wrap(DoublesAlways()), None) if of == "layer" else (DoublesAlways, wrap)
    records, *_ = run_of("max", middle, every=2, whole=whole)
    for record in records:
        named = [row["layer"] for row in record["activations"] if row["place"] == "output"]
        assert [name.removesuffix("._orig_mod") for name in named] == [*"0123", ""]


class Apart(nn.Module):
    """Runs uncompiled, and calls a layer that the user compiled, which has run before anything is recorded."""

    def __init__(self):
        super().__init__()
        self.layer = torch.compile(nn.Sequential(DoublesAlways(), nn.Tanh()), backend="eager")
        self.layer(torch.ones(4, 8, requires_grad=True)).sum().backward()

    @torch.compiler.disable
    def forward(self, x):
        return self.layer(x)


@pytest.mark.usefixtures("fresh_dynamo")
def test_layers_inside_code_that_the_user_compiled_before_are_recorded():
    records, *_ = run_of("max", Apart, every=2)
    assert [each["step"] for each in records] == [1, 2, 4]
    for record in records:
        named = [row["layer"] for row in record["activations"] if row["place"] == "output"]
        assert named == ["0", "1", "2.layer.0", "2.layer.1", "2.layer._orig_mod", "2", "3", ""]
