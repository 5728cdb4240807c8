"""All frameworks train the example's models alike: each follows a float64 oracle, from the same weights and batches."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from workload_oracle import Oracle, ResNet50Oracle
from workload_runs import run

from examples import data as datasets
from examples import models
from examples.models.neutral import first_weights
from unifiedamp import CheckpointError

# As in configs/digits_conv.toml. A float32 rounding can tip a ReLU over a whole flat background at once, which no
# tolerance on the loss forgives, and CPUs round differently: the images get a little noise, so that no region is flat.
RATE, MOMENTUM, SIZE, STEPS, NOISE = 0.02, 0.9, 64, 20, 0.05
WIDTH, FEW = 4, 3


@pytest.fixture(scope="session")  # frameworks take turns at the tests of a file
def digits():
    data = datasets.load("digits", None, None)
    noise = np.random.default_rng(0).standard_normal(data.train_images.shape, np.float32)
    return dataclasses.replace(data, train_images=data.train_images + np.float32(NOISE) * noise)


@pytest.fixture
def on_digits(digits, monkeypatch):
    """Have the example train on the same images as the oracle."""
    monkeypatch.setattr(datasets, "load", lambda *_: digits)


@pytest.fixture(scope="session")  # frameworks take turns at the tests of a file
def oracles(digits):
    """Model -> (losses of 20 steps, the trained oracle)."""
    found = {}
    for name in ("conv", "mlp"):
        oracle = Oracle(first_weights(name, digits.shape, 10, seed=0), RATE, MOMENTUM)
        batches = itertools.islice(digits.batches((0, 1, 2, 3), SIZE, seed=0, epoch=0), STEPS)
        found[name] = ([oracle.step(x, y) for x, y in batches], oracle)
    return found


@pytest.fixture(scope="session")  # frameworks take turns at the tests of a file
def resnet(digits):
    """Losses of the first steps of a narrow ResNet-50, and the trained oracle."""
    oracle = ResNet50Oracle(first_weights("resnet50", digits.shape, 10, 0, width=WIDTH), RATE, MOMENTUM)
    batches = itertools.islice(digits.batches((0, 1, 2, 3), SIZE, seed=0, epoch=0), FEW)
    return [oracle.step(x, y) for x, y in batches], oracle


def distance(value, expected):
    return np.linalg.norm(value - expected) / np.linalg.norm(expected)


# Each within 5e-5 of the oracle: any two within 1e-4 of each other.
@pytest.mark.parametrize("model", ["conv", "mlp"])
def test_float32_losses_agree_to_1e_4(backend, model, oracles, on_digits, tmp_path):
    done = run(tmp_path, backend, model=model, learning_rate=RATE, momentum=MOMENTUM, batch_size=SIZE)
    losses, _ = oracles[model]
    np.testing.assert_allclose(done.history.losses[:STEPS], losses, rtol=5e-5)


@pytest.mark.parametrize("model", ["conv", "mlp"])
def test_exported_weights_and_momentum_are_the_oracles(backend, model, oracles, on_digits, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.Batches, "__len__", lambda _: STEPS)
    done = run(tmp_path, backend, model=model, learning_rate=RATE, momentum=MOMENTUM, batch_size=SIZE)
    _, oracle = oracles[model]
    kit = models.for_backend(backend)
    weights = kit.export_weights(done.model)
    momentum = kit.export_momentum(done.model, done.optimizers[0])
    assert list(weights) == list(oracle.w)
    for name, value in weights.items():
        # The running variance may be the unbiased one: n/(n-1) with n at least 64 x 2 x 2.
        assert distance(value, oracle.w[name]) < (5e-3 if name.endswith("variance") else 1e-4), name
    for name, value in momentum.items():
        assert distance(value, oracle.v[name]) < 1e-3, name


# Fifty layers, with batch norms over as few as 64 values, hold for three steps what the small models hold for twenty.
def test_a_narrow_resnet50_follows_the_oracle(backend, resnet, on_digits, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.Batches, "__len__", lambda _: FEW)
    options = {"model": "resnet50", "width": WIDTH, "learning_rate": RATE, "momentum": MOMENTUM, "batch_size": SIZE}
    done = run(tmp_path, backend, **options)
    losses, oracle = resnet
    np.testing.assert_allclose(done.history.losses, losses, rtol=5e-5)
    kit = models.for_backend(backend)
    momentum = kit.export_momentum(done.model, done.optimizers[0])
    assert kit.export_weights(done.model).keys() == oracle.w.keys()
    for name, value in momentum.items():
        assert distance(value, oracle.v[name]) < 1e-3, name
    again = kit.make_model("resnet50", (8, 8, 1), 10, 1, width=WIDTH)
    trained = kit.export_weights(done.model)
    kit.import_weights(again, trained)
    for name, value in kit.export_weights(again).items():
        np.testing.assert_array_equal(value, trained[name], err_msg=name)


@pytest.mark.parametrize("model", ["conv", "mlp"])
def test_import_then_export_changes_no_bit(backend, model, digits, tmp_path):
    done = run(tmp_path, backend, model=model)
    kit, rng = models.for_backend(backend), np.random.default_rng(3)
    weights = {k: np.abs(rng.standard_normal(v.shape)).astype("f4") for k, v in kit.export_weights(done.model).items()}
    kit.import_weights(done.model, weights)
    for name, value in kit.export_weights(done.model).items():
        np.testing.assert_array_equal(value, weights[name], err_msg=name)
    momentum = kit.export_momentum(done.model, done.optimizers[0])
    assert any(np.any(value) for value in momentum.values())
    kit.import_momentum(done.model, done.optimizers[0], momentum)
    for name, value in kit.export_momentum(done.model, done.optimizers[0]).items():
        np.testing.assert_array_equal(value, momentum[name], err_msg=name)


def test_weights_of_another_model_are_refused_by_name(backend, digits):
    kit = models.for_backend(backend)
    mine = kit.make_model("mlp", digits.shape, 10, 0)
    weights = kit.export_weights(mine)
    with pytest.raises(CheckpointError, match="'dense5/bias' is not in the model"):
        kit.import_weights(mine, {**weights, "dense5/bias": np.zeros(1)})
    with pytest.raises(CheckpointError, match="'dense4/bias' is not in the checkpoint"):
        kit.import_weights(mine, {k: v for k, v in weights.items() if k != "dense4/bias"})
    with pytest.raises(CheckpointError, match=r"'dense1/kernel' has shape \(3, 3\)"):
        kit.import_weights(mine, {**weights, "dense1/kernel": np.zeros((3, 3))})
