"""What ``amp.prepare`` binds, and what it refuses."""

from importlib.metadata import version

import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import batch, keras, mean_square, mlp, prepared  # noqa: E402


def session(**options):
    return ua.Amp("tensorflow", "float32", **options)


def test_unbuilt_optimizers_take_one_model_each():
    amp = session(loss_scale=4.0)
    models = [mlp(), mlp()]
    first, second, one, two = amp.prepare(*models, keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))
    x, y = batch()
    amp.backward(lambda: mean_square(first(x), y) + mean_square(second(x), y), [one, two])
    assert sorted(amp.gradients(one)) == ["hidden.bias", "hidden.kernel", "out.bias", "out.kernel"]
    assert len(amp.gradients(two)) == 4
    assert amp.step(one).applied
    assert amp.step(two).applied


def test_a_built_optimizer_keeps_its_variables_and_the_other_takes_the_rest():
    amp = session(loss_scale=4.0)
    models, built = [mlp(), mlp()], keras.optimizers.SGD(0.1)
    built.build(models[0].trainable_variables)
    first, second, one, two = amp.prepare(*models, built, keras.optimizers.SGD(0.1))
    before, (x, y) = first.get_weights(), batch()
    amp.backward(lambda: mean_square(first(x), y) + mean_square(second(x), y), [one, two])
    assert (len(amp.gradients(one)), len(amp.gradients(two))) == (4, 4)
    assert amp.step(two).applied
    assert all((now == then).all() for now, then in zip(first.get_weights(), before, strict=True))


@pytest.mark.parametrize("scale", ["none", 4.0])
def test_an_optimizer_is_bound_once(scale):
    """A notebook's cell that runs again: the given optimizer and the returned one lead to the same."""
    amp, given, model = session(loss_scale=scale), keras.optimizers.SGD(0.1), mlp()
    model, optimizer = amp.prepare(model, given)
    for again in (given, optimizer):
        assert amp.prepare(model, again) == (model, optimizer)
    other = keras.optimizers.SGD(0.1)
    with pytest.raises(ua.PrepareError, match=r"another optimizer of this session trains them already: to replace it"):
        amp.prepare(model, other)
    with pytest.raises(ua.PrepareError, match="was built for variables that no given model has"):
        amp.prepare(mlp(), optimizer)
    x, y = batch()
    amp.backward(lambda: mean_square(model(x), y), optimizer)
    assert amp.step(optimizer).applied
    assert (amp.applied_steps, int(given.iterations)) == (1, 1)


def test_names_tell_two_models_apart():
    amp = session()
    optimizer = keras.optimizers.SGD(0.1)
    first, second, optimizer = amp.prepare(mlp(), mlp(), optimizer)
    x, _ = batch()
    amp.backward(lambda: tf.reduce_sum(first(x)) + tf.reduce_sum(second(x)), optimizer)
    names = list(amp.gradients(optimizer))
    assert len(names) == len(set(names)) == 8
    assert any(name.startswith(second.name) for name in names)


def test_it_is_not_guessed_whose_the_variables_are():
    models = [mlp(), mlp(), mlp()]
    with pytest.raises(ua.PrepareError, match=r"optimizer\.build"):
        session().prepare(*models, keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1))


def test_messages_call_an_optimizer_by_its_own_class():
    amp, _, optimizer = prepared("float32", loss_scale=4.0)
    with pytest.raises(ua.StepOrderError, match=r"amp\.step\(SGD\)"):
        amp.step(optimizer)


def test_a_model_without_variables():
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(ua.PrepareError, match="has no variables yet"):
        session().prepare(model, keras.optimizers.SGD(0.1))


def test_a_model_with_nothing_to_train():
    model = mlp()
    model.trainable = False
    with pytest.raises(ua.PrepareError, match="no trainable variable is left"):
        session().prepare(model, keras.optimizers.SGD(0.1))


def test_an_optimizer_that_scales_already():
    wrapped = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ua.PrepareError, match="scales the loss already"):
        session(loss_scale=4.0).prepare(mlp(), wrapped)
    _, model, optimizer = prepared(loss_scale=4.0)
    with pytest.raises(ua.PrepareError, match=r"another session trains with this optimizer: call close\(\)"):
        session(loss_scale=4.0).prepare(model, optimizer)


@pytest.mark.skipif(version("keras").startswith("2."), reason="Keras 2 has no loss_scale_factor")
def test_a_keras_3_optimizer_with_a_static_scale():
    optimizer = keras.optimizers.SGD(0.1, loss_scale_factor=8.0)
    with pytest.raises(ua.PrepareError, match="loss_scale_factor"):
        session(loss_scale=4.0).prepare(mlp(), optimizer)


def test_a_v1_optimizer():
    with pytest.raises(ua.WrongObjectError, match="Keras optimizers"):
        session().prepare(mlp(), tf.compat.v1.train.GradientDescentOptimizer(0.1))


def test_a_central_storage_strategy():
    strategy = tf.distribute.experimental.CentralStorageStrategy()
    amp = session(loss_scale=4.0)
    with strategy.scope():
        model, optimizer = mlp(), keras.optimizers.SGD(0.1)
        with pytest.raises(ua.UnsupportedError, match=r"amp\.scope: .* CentralStorageStrategy"), amp.scope():
            pass
        with pytest.raises(ua.UnsupportedError, match=r"amp\.prepare: .* CentralStorageStrategy"):
            amp.prepare(model, optimizer)
    with pytest.raises(ua.UnsupportedError, match=r"amp\.prepare: .* CentralStorageStrategy"):
        amp.prepare(model, optimizer)


@pytest.mark.parametrize(
    ("name", "reason"), [("TPUStrategyV2", "TPUs have no float16"), ("ParameterServerStrategyV2", "at its own time")]
)
def test_strategies_that_cannot_be_made_here(name, reason, monkeypatch):
    monkeypatch.setattr(tf.distribute, "has_strategy", lambda: True)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: type(name, (), {})())
    with pytest.raises(ua.UnsupportedError, match=f"{name} .*{reason}"):
        session().prepare(mlp(), keras.optimizers.SGD(0.1))


@pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning")
def test_the_optimizer_of_a_loaded_model(tmp_path):
    """Saved with a prepared optimizer; what the refusal advises works."""
    _, model, optimizer = prepared("mixed_float16", loss_scale=8.0)
    model.compile(optimizer=optimizer, loss="mse")
    x, y = batch()
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = ua.Amp("tensorflow", "mixed_float16", loss_scale=8.0)
    with pytest.raises(ua.PrepareError, match=r"pass the optimizer inside it \(optimizer\.inner_optimizer\)"):
        again.prepare(loaded, loaded.optimizer)
    loaded, optimizer = again.prepare(loaded, loaded.optimizer.inner_optimizer)
    before = int(optimizer.iterations.numpy())
    again.backward(lambda: mean_square(loaded(x), y), optimizer)
    assert again.step(optimizer).applied
    assert int(optimizer.iterations.numpy()) == before + 1


def test_frozen_variables_are_left_out():
    amp = session()
    model = mlp()
    model.get_layer("hidden").trainable = False
    model, optimizer = amp.prepare(model, keras.optimizers.SGD(0.1))
    x, y = batch()
    amp.backward(lambda: mean_square(model(x), y), optimizer)
    assert sorted(amp.gradients(optimizer)) == ["out.bias", "out.kernel"]


@pytest.mark.skipif("not hasattr(keras, 'distribution')", reason="Keras 2 has no keras.distribution")
def test_a_distribution_of_keras_is_refused_which_would_train_on_one_device():
    amp = ua.Amp("tensorflow", "float32")
    with amp.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        with (
            pytest.raises(ua.UnsupportedError, match=r"amp\.scope: keras\.distribution is set to DataParallel"),
            amp.scope(),
        ):
            pass
        with pytest.raises(ua.UnsupportedError, match=r"amp\.prepare: .* use tf\.distribute\.MirroredStrategy"):
            amp.prepare(model, keras.optimizers.SGD())
    finally:
        keras.distribution.set_distribution(None)
    amp.prepare(model, keras.optimizers.SGD())


def test_layers_of_a_float64_model_are_not_under_the_policy():
    """A model that is float64 as a whole is warned of; a layer of it alone is a choice, which the plan lists."""
    amp = ua.Amp("tensorflow", "mixed_bfloat16")
    with amp.scope():
        wide = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype="float64")])
        mixed = mlp(dtype="float64")
    with pytest.warns(ua.PolicyWarning, match="all 2 trainable parameters of .* are float64"):
        amp.prepare(wide, keras.optimizers.SGD(0.1))
    amp.prepare(mixed, keras.optimizers.SGD(0.1))
    row = amp.explain().row("float64 parameters")
    assert "4 of 6" in row.note
    assert "hidden.kernel" in row.note
