"""Each change to an object of Keras's is undone, also after an exception."""

import pytest

tf = pytest.importorskip("tensorflow")
from models import keras, mlp  # noqa: E402

from unifiedamp_tensorflow import patches  # noqa: E402


def test_attributes_of_one_object_come_back():
    layer = keras.layers.BatchNormalization(momentum=0.75)
    with pytest.raises(KeyError), patches.attributes(layer, momentum=1.0, call=None):
        assert (layer.momentum, layer.call) == (1.0, None)
        raise KeyError
    assert layer.momentum == 0.75
    assert "call" not in vars(layer)


def test_a_models_training_methods_come_back():
    model = mlp()
    vars(model)["fit"] = own = lambda: "own"
    undo = patches.override_training(model, fit=lambda: "ours", make_train_function=lambda: None)
    assert model.fit() == "ours"
    undo()
    assert model.fit is own
    assert "make_train_function" not in vars(model)


def test_dtype_policies_come_back_in_reverse_order():
    layer, changes = keras.layers.Dense(2), patches.PolicyChanges()
    before = layer.dtype_policy
    for name in ("mixed_bfloat16", "mixed_float16"):
        changes.set(layer, keras.mixed_precision.Policy(name))
    assert layer.compute_dtype == "float16"
    changes.undo()
    assert layer.dtype_policy.name == before.name


def test_a_subclass_shows_the_original_class():
    class Doubled(keras.layers.Dense):
        """Twice."""

    layer = Doubled(2)
    kind = patches.subclass(Doubled, Doubled, {"units": 7})
    patches.set_class(layer, kind)
    assert type(layer) is kind
    assert (layer.__class__, type(layer).__name__, type(layer).__doc__) == (Doubled, "Doubled", "Twice.")
    patches.set_class(layer, Doubled)
    assert type(layer) is Doubled


@pytest.mark.parametrize("layout", [None, "channels_first", "channels_last"])
def test_the_image_layout_comes_back(layout):
    before = keras.backend.image_data_format()
    with pytest.raises(KeyError), patches.image_layout(layout):
        assert keras.backend.image_data_format() == (layout or before)
        raise KeyError
    assert keras.backend.image_data_format() == before
