"""``unifiedamp diff`` names the planted divergence of two runs."""

import contextlib
import dataclasses
import math

import numpy as np
import pytest
import torch
from loops import session

import unifiedamp as ua
from unifiedamp.backend.sketch import sketch_of
from unifiedamp.recording.difference import difference
from unifiedamp.recording.reading import read_recording
from unifiedamp_torch.recording.sketches import sketch

nn = torch.nn


class Net(nn.Module):
    """Blocks with a normalization, a convolution's output and a head."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(64, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.relu(self.hidden(x.flatten(1))))


def altered(module, change):
    """Change a module's output from step 3 on; ``state`` counts steps."""

    def plant(run):
        getattr(run.model, module).register_forward_hook(
            lambda _module, _args, output: change(output) if run.step >= 3 else output
        )

    return plant


def gradient(name, factor):
    def plant(run):
        param = run.model.get_parameter(name)
        param.register_hook(lambda grad: grad * factor if run.step >= 3 else grad)

    return plant


def rate(**changes):
    def plant(run):
        run.changes = changes

    return plant


def weights(name, change):
    def plant(run):
        with torch.no_grad():
            change(run.model.get_parameter(name))

    return plant


def poke(name):
    """A weight is written to between steps 3 and 4."""

    def plant(run):
        run.poked = name

    return plant


PLANTED = {
    "conv forward": (altered("conv", lambda out: out * 1.05), {}, (3, "forward", "conv")),
    "norm forward": (altered("norm", lambda out: out + 0.1), {}, (3, "forward", "norm")),
    "hidden forward": (altered("hidden", lambda out: out.clamp(max=0.3)), {}, (3, "forward", "hidden")),
    "head forward": (altered("head", lambda out: -out), {}, (3, "forward", "head")),
    "nan forward": (altered("hidden", lambda out: out * math.nan), {}, (3, "forward", "hidden")),
    "one element": (altered("hidden", lambda out: out + nn.functional.one_hot(torch.tensor(5), 32)), {},
                    (3, "forward", "hidden")),
    "head gradient": (gradient("head.weight", 1.5), {}, (3, "backward", "head.weight")),
    "hidden gradient": (gradient("hidden.weight", -1.0), {}, (3, "backward", "hidden.weight")),
    "conv gradient": (gradient("conv.weight", 1.2), {}, (3, "backward", "conv.weight")),
    "bias gradient": (gradient("hidden.bias", 0.0), {}, (3, "backward", "hidden.bias")),
    "rate": (rate(lr=0.11), {}, (1, "update", "conv.weight")),
    "momentum": (rate(momentum=0.8), {}, (2, "update", "conv.weight")),
    "decay": (rate(weight_decay=0.01), {}, (1, "update", "conv.weight")),
    "seed": (None, {"seed": 1}, (1, "initial weights", "conv.weight")),
    "one weight": (weights("head.bias", lambda param: param.add_(0.1)), {}, (1, "initial weights", "head.bias")),
    "data": (None, {"data": 7}, (1, "data", "")),
    "later data": (None, {"late": 7}, (3, "data", "")),
    "dtype of a layer": (None, {"policy": {"layer_overrides": {"hidden": "float32"}}}, (1, "forward", "hidden")),
    "written weight": (poke("hidden.weight"), {}, (4, "between recorded steps", "hidden.weight")),
    "scale": (None, {"scale": 2.0**127}, (1, "backward", "head.bias")),
}  # fmt: skip


class Run:
    def __init__(self, path, plant=None, seed=0, data=0, late=0, policy=None, scale=8.0, compiled=False):
        torch.manual_seed(seed)
        self.model, self.step, self.changes, self.poked = Net(), 0, {}, None
        amp = session(
            {"compute_dtype": "bfloat16", **(policy or {})}, compile="default",
            loss_scale=ua.DynamicLossScale(initial_scale=scale, max_scale=2.0**127),
        )  # fmt: skip
        if plant is not None:
            plant(self)
        options = {"lr": 0.1, "momentum": 0.9, **self.changes}
        model, optimizer = amp.prepare(self.model, torch.optim.SGD(self.model.parameters(), **options))
        with contextlib.closing(amp), amp.record(path, every=1, compare=True):
            for self.step in range(1, 5):
                rng = np.random.default_rng(100 * data + self.step + (late if self.step >= 3 else 0))
                x = torch.from_numpy(rng.normal(size=(8, 1, 4, 4)).astype(np.float32))
                if self.poked and self.step == 4:
                    weights(self.poked, lambda param: param.mul_(1.5))(self)
                    self.poked = None
                amp.backward(lambda x=x: model(x).square().mean(), optimizer)
                amp.step(optimizer)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "run.jsonl"
    Run(path)
    return read_recording(path)


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.filterwarnings("ignore::unifiedamp.AmpWarning")
def test_the_planted_divergence_is_named(plain, tmp_path, name):
    plant, options, expected = PLANTED[name]
    Run(tmp_path / "run.jsonl", plant, **options)
    found = difference(plain, read_recording(tmp_path / "run.jsonl")).first
    assert (found.step, found.part, found.name) == expected


def test_equal_runs_do_not_diverge(plain, tmp_path):
    Run(tmp_path / "run.jsonl")
    found = difference(plain, read_recording(tmp_path / "run.jsonl"), ulp=0.0)
    assert (found.steps, found.first, found.settings) == (4, None, [])


@pytest.mark.parametrize("shape", [(), (7,), (33, 65), (5, 1, 40, 30)])
def test_sketches_are_those_of_float64(shape):
    rng = np.random.default_rng(0)
    array = rng.normal(size=shape).astype(np.float32)
    drawn = sketch(torch.from_numpy(np.asarray(array)))
    expected = sketch_of(np.asarray(array))
    np.testing.assert_allclose(
        drawn.numbers.numpy(), [expected.norm, *expected.values, *expected.ordered], rtol=1e-4, atol=1e-4
    )


def test_a_sketch_estimates_distances():
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(200):
        a, b = rng.normal(size=(2, 3000)) + 1.0
        distance = math.dist(sketch_of(a).values, sketch_of(b).values)
        ratios.append(distance**2 / np.square(a - b).sum())
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.1)
    assert np.std(ratios) == pytest.approx(math.sqrt(2 / 32), rel=0.3)


class Named(nn.Module):
    """Layers in a row, with other names than those of ``nn.Sequential``."""

    def __init__(self, *layers):
        super().__init__()
        for index, layer in enumerate(layers):
            self.add_module(f"layer{index}", layer)

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x


def recorded(path, kind, *layers):
    torch.manual_seed(0)
    model = kind(*(layer() for layer in layers))
    amp = session("float32")
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    with contextlib.closing(amp), amp.record(path, every=1, compare=True):
        amp.backward(lambda: model(torch.ones(4, 8)).square().mean(), optimizer)
        amp.step(optimizer)
    return read_recording(path)


def dense(outputs=8, **options):
    return lambda: nn.Linear(8, outputs, **options)


MODELS = {
    "a layer more": ((nn.Sequential, dense(), nn.ReLU, dense(), dense()), "the second one alone has the layer `3`"),
    "no bias": ((nn.Sequential, dense(), nn.ReLU, dense(bias=False)), "the first one alone has the weight `2.bias`"),
    "another size": ((nn.Sequential, dense(), nn.ReLU, dense(4)),
                     r"the weight `2.weight` is \(8, 8\) in the first one and \(4, 8\) in the second one"),
    "other names and a layer more": ((Named, dense(), lambda: nn.LayerNorm(8), nn.ReLU, dense()),
                                     r"the second one alone has the layer `layer1` \(LayerNorm: weight \(8,\), bias"),
    "other names and another function": ((Named, dense(), nn.Tanh, dense()),
                                         r"the first one alone has the layer `1` \(ReLU\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_recordings_of_different_models_are_refused_with_the_first_layer(tmp_path, name):
    layers, said = MODELS[name]
    one = recorded(tmp_path / "one.jsonl", nn.Sequential, dense(), nn.ReLU, dense())
    with pytest.raises(ua.ConfigError, match=f"the recordings are of different models: {said}"):
        difference(one, recorded(tmp_path / "other.jsonl", *layers))


def test_layers_of_one_name_and_two_kinds_are_named_with_both(tmp_path):
    one, other = (
        recorded(tmp_path / f"{kind.__name__}.jsonl", nn.Sequential, dense(), kind, dense())
        for kind in (nn.ReLU, nn.Tanh)
    )
    found = difference(one, other).first
    assert (found.part, found.name, found.kind) == ("forward", "1", "ReLU")
    assert found.note == "it is a ReLU in the first run and a Tanh in the second"


def test_what_cannot_be_compared_is_refused(plain):
    def changed(**changes):
        return dataclasses.replace(plain, **changes)

    step = plain.steps[0]
    layers = [row for row in step["compare"]["layers"] if row["layer"] != "hidden"]
    without = {**step, "compare": {**step["compare"], "layers": layers}}
    for other, said in (
        (changed(steps=[without]), "different models: the first one alone has the layer `hidden`"),
        (changed(steps=[{key: step[key] for key in step if key != "compare"}]), "has no sketches to compare"),
        (changed(steps=[{**step, "step": 9}]), "no recorded step in common"),
    ):
        with pytest.raises(ua.ConfigError, match=said):
            difference(plain, other)
