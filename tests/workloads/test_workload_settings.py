"""Configuration, data and the command: what is wrong is said in one line of ours, and nothing is lost."""

from __future__ import annotations

import gzip
import types

import numpy as np
import pytest
from workload_runs import CLASSIFIER, finish, run, settings, start, write_config

import unifiedamp as ua
from examples import data as datasets
from examples import image_classifier, models
from unifiedamp.workloads.configuration import read_settings as read
from unifiedamp.workloads.configuration import read_source
from unifiedamp.workloads.definition.loading import define, make


def read_settings(path, **options):
    return read(read_source(str(path)), **options)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"epochs": 0}, "epochs: .*greater than or equal to 1"),
        ({"epochs": "three"}, "epochs: .*valid integer"),
        ({"steps": 0}, "steps: .*greater than or equal to 1"),
        ({"clip_norm": -1.0}, "clip_norm: .*greater than 0"),
    ],
)
def test_wrong_train_setting_is_named(tmp_path, table, message):
    with pytest.raises(ua.ConfigError, match=message):
        read_settings(write_config(tmp_path, **table))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"batchsize": 3}, "image_classifier.py has no setting 'batchsize'; did you mean 'batch_size'"),
        ({"model": "cnn"}, "setting 'model': Input should be 'conv', 'mlp' or 'resnet50' \\(got 'cnn'\\)"),
        ({"model": "conv", "width": 8}, "width is a setting of model 'resnet50'; 'conv' has none"),
        ({"learning_rate": -1.0}, "setting 'learning_rate': .*greater than 0"),
        ({"data": "imagenet"}, "setting 'data': .*'digits' or 'fashion-mnist'"),
    ],
)
def test_wrong_setting_of_the_workload_is_named(tmp_path, table, message):
    chosen = read_settings(write_config(tmp_path, **table))
    with pytest.raises(ua.ConfigError, match=message):
        make(define(chosen.workload), chosen.given, "torch")


def test_unknown_tables_and_keys_are_named(tmp_path):
    with pytest.raises(ua.ConfigError, match="unknown key 'polcy'; did you mean 'policy'"):
        read_settings(write_config(tmp_path, {"polcy": "float32"}))
    (tmp_path / "x.toml").write_text("[trian]\nepochs = 1\n")
    with pytest.raises(ua.ConfigError, match="unknown table 'trian'; did you mean 'train'"):
        read_settings(tmp_path / "x.toml")
    (tmp_path / "y.toml").write_text(f"workload = '{CLASSIFIER}'\n[train]\nepoch = 1\n")
    with pytest.raises(ua.ConfigError, match="unknown key 'epoch'; did you mean 'epochs'"):
        read_settings(tmp_path / "y.toml")


def test_command_line_goes_before_the_file(tmp_path):
    path = write_config(tmp_path, {"backend": "torch", "policy": "float32"}, epochs=7, model="mlp", seed=3)
    got = read_settings(
        path, amp={"policy": "mixed_bfloat16", "backend": None}, train={"epochs": 2}, given={"model": "conv"}
    )
    assert (got.amp["backend"], got.amp["policy"]) == ("torch", "mixed_bfloat16")
    assert (got.train.epochs, got.given) == (2, {"model": "conv", "seed": 3})


@pytest.mark.parametrize(
    "name", ["digits_conv", "digits_mlp", "fashion_mnist_conv", "fashion_mnist_mlp", "fashion_mnist_resnet50"]
)
def test_shipped_configurations_are_valid(name):
    chosen = read_settings(CLASSIFIER.parent / "configs" / f"{name}.toml")
    made = make(define(chosen.workload), chosen.given, "torch")
    assert made.settings["model"] in name


def test_a_backend_without_models_is_refused():
    with pytest.raises(ua.UnsupportedError, match="no models for backend 'toy': add examples/models/toy_models.py"):
        models.for_backend("toy")
    with pytest.raises(ua.UnsupportedError, match="no models for backend 'toy'"):
        image_classifier.ImageClassifier("toy").make_model()


# -- data --------------------------------------------------------------------------------------------------------------


def tiny_fashion_mnist(folder):
    """Write four files of five images each, in the published format."""
    rng = np.random.default_rng(0)
    wanted = {}
    for part in ("train", "t10k"):
        wanted[part] = (rng.integers(0, 256, (5, 28, 28), np.uint8), rng.integers(0, 10, 5).astype(np.uint8))
        for kind, magic, array in zip(("images-idx3", "labels-idx1"), (0x803, 0x801), wanted[part], strict=True):
            head = np.array([magic, *array.shape], ">i4").tobytes()
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    return wanted


def test_fashion_mnist_files_are_read(tmp_path):
    wanted = tiny_fashion_mnist(tmp_path)
    got = datasets.load("fashion-mnist", str(tmp_path), None)
    assert got.shape == (28, 28, 1)
    np.testing.assert_allclose(got.train_images[..., 0] * 90.02 + 72.94, wanted["train"][0], atol=1e-3)
    np.testing.assert_array_equal(got.test_labels, wanted["t10k"][1])


@pytest.mark.parametrize("keep", [0, 9, 60, -40])
def test_damaged_fashion_mnist_is_refused_by_file(tmp_path, keep):
    tiny_fashion_mnist(tmp_path)
    file = tmp_path / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ua.ConfigError, match="t10k-images-idx3-ubyte.gz is not a whole file"):
        datasets.load("fashion-mnist", str(tmp_path), None)


def test_shortened_fashion_mnist_is_refused_though_gzip_is_whole(tmp_path):
    tiny_fashion_mnist(tmp_path)
    file = tmp_path / "train-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())[:-1]))
    with pytest.raises(ua.ConfigError, match="train-labels-idx1-ubyte.gz is not a whole file"):
        datasets.load("fashion-mnist", str(tmp_path), None)


def test_without_files_the_frameworks_downloader_is_asked(tmp_path):
    arrays = (np.zeros((2, 28, 28), np.uint8), np.array([1, 2]), np.ones((1, 28, 28), np.uint8), np.array([3]))
    kit = types.SimpleNamespace(download_fashion_mnist=lambda folder: arrays)
    assert datasets.load("fashion-mnist", str(tmp_path), kit).test_labels.tolist() == [3]

    def fail(folder):
        raise OSError("no route to host")

    with pytest.raises(ua.ConfigError, match="downloader failed .no route to host.*data_folder"):
        datasets.load("fashion-mnist", str(tmp_path), types.SimpleNamespace(download_fashion_mnist=fail))


def test_batches_cover_an_epoch_in_an_order_of_seed_and_epoch():
    digits = datasets.load("digits", None, None)
    assert (len(digits.train_labels), len(digits.test_labels)) == (1437, 360)

    def labels(seed, epoch):
        return np.concatenate([y for _, y in digits.batches((0, 1, 2, 3), 64, seed, epoch)])

    assert len(labels(0, 0)) == 1437 // 64 * 64
    np.testing.assert_array_equal(labels(0, 1), labels(0, 1))
    assert not np.array_equal(labels(0, 1), labels(0, 2))
    assert not np.array_equal(labels(0, 1), labels(1, 1))
    assert len(digits.batches((0, 1, 2, 3), 64, 0, 0)) == 22


def test_an_incomplete_window_is_dropped_and_an_epoch_without_one_refused(backend, tmp_path):
    done = run(tmp_path, backend, model="mlp", samples=6 * 64 + 5, amp={"accumulate_steps": 4})
    assert len(done.history.losses) == 4
    with pytest.raises(ua.ConfigError, match=r"yields 1, fewer than one step takes .accumulate_steps 2."):
        run(tmp_path, backend, out="other", model="mlp", batch_size=1000, amp={"accumulate_steps": 2})
    with pytest.raises(ua.ConfigError, match=r"batches.0. yields nothing"):
        run(tmp_path, backend, out="more", model="mlp", batch_size=2000)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["image_clasifier.py"], "there is no file"),
        ([f"{CLASSIFIER.parent}/image_clasifier.py"], "did you mean 'image_classifier.py'"),
        ([f"{CLASSIFIER}:ImageClasifier"], "did you mean 'ImageClassifier'"),
        (["none.toml"], "none.toml cannot be read"),
        ([CLASSIFIER, "--backend", "troch"], "troch"),
        ([CLASSIFIER, "--backend", "HERE", "--policy", "half"], "half"),
        ([CLASSIFIER, "--backend", "HERE", "--set", "data=mnist"], "fashion-mnist"),
        ([CLASSIFIER, "--backend", "HERE", "--set", "sed=1"], "did you mean 'seed'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, arguments, message):
    here = next(name for name, info in ua.available_backends().items() if info.installed and name != "toy")
    arguments = [here if word == "HERE" else word for word in arguments]
    code, out, err = finish(start("train", *arguments, cwd=tmp_path))
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("unifiedamp: ")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_run_is_not_overwritten(backend, tmp_path, monkeypatch):
    done = run(tmp_path, backend, model="mlp")
    done.epoch, done.batch = 0, 3
    done.settings = settings(tmp_path, backend, model="mlp", epochs=2)
    done.save()
    before = done.checkpoint_path.read_bytes()
    with pytest.raises(ua.ConfigError, match="holds an unfinished run .epoch 0, batch 3.: pass --resume"):
        run(tmp_path, backend, model="mlp", epochs=2)
    assert done.checkpoint_path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [({"model": "conv"}, "model = 'mlp'"), ({"batch_size": 32}, "batch_size = 64"), ({"seed": 1}, "seed = 0")],
)
def test_another_runs_checkpoint_is_refused(backend, tmp_path, change, message):
    run(tmp_path, backend, model="mlp")
    with pytest.raises(ua.CheckpointError, match=message):
        run(tmp_path, backend, **{"model": "mlp", "epochs": 2, **change}, resume=True)


def test_a_damaged_checkpoint_is_refused_and_left_alone(backend, tmp_path):
    done = run(tmp_path, backend, model="mlp")
    damaged = done.checkpoint_path.read_bytes()[:-1000]
    done.checkpoint_path.write_bytes(damaged)
    with pytest.raises(ua.CheckpointError, match="truncated"):
        run(tmp_path, backend, model="mlp", epochs=2, resume=True)
    assert done.checkpoint_path.read_bytes() == damaged
