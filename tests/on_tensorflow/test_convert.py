"""Clones of Keras models for inference: every kind of model, and what cannot be cloned."""

import numpy as np
import pytest
import tensorflow as tf
from models import keras

import unifiedamp as ua


def sequential():
    layers = [keras.layers.Dense(8, "relu", name="a"), keras.layers.LayerNormalization(name="n")]
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2, name="out")])


def functional():
    x = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="deep")], name="inner")
    y = keras.layers.LayerNormalization(name="n")(inner(x))
    return keras.Model(x, [keras.layers.Dense(2, name="out")(y), keras.layers.Dense(3, name="b")(y)])


class Subclassed(keras.Model):
    def __init__(self, units=8, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.a, self.n = keras.layers.Dense(units, name="a"), keras.layers.LayerNormalization(name="n")
        self.out = keras.layers.Dense(2, name="out")

    def call(self, x):
        return self.out(self.n(self.a(x)))

    def get_config(self):
        return {"units": self.units}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


class Secretive(Subclassed):
    def get_config(self):
        raise NotImplementedError("no configuration")


X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def prepared(make, policy="mixed_bfloat16"):
    amp = ua.Amp("tensorflow", policy)
    with amp.scope():
        model = make()
        model(X)
        rng = np.random.default_rng(1)  # with unlucky weights a normalization widens bfloat16's roundings
        model.set_weights([rng.normal(size=each.shape) for each in model.get_weights()])
    return amp, amp.prepare(model)


def dtypes(model):
    return {tf.as_dtype(v.dtype).name for v in model.weights}


@pytest.mark.parametrize("make", [sequential, functional, Subclassed])
def test_a_clone_answers_as_inference_does(make):
    amp, model = prepared(make)
    with amp.inference(model):
        expected = tf.nest.map_structure(np.array, model(X))
    policies = [layer.dtype_policy.name for layer in model.layers]
    made = amp.convert_model(model, tf.constant(X))
    amp.close()
    for ours, theirs in zip(tf.nest.flatten(made(X)), tf.nest.flatten(expected), strict=True):
        assert ours.dtype == tf.float32
        np.testing.assert_allclose(np.array(ours), theirs, rtol=2**-6, atol=2**-6)
    assert dtypes(made) == {"bfloat16", "float32"}
    assert [layer.dtype_policy.name for layer in model.layers] == policies
    assert dtypes(model) == {"float32"}


@pytest.mark.parametrize("make", [sequential, functional, Subclassed])
def test_nothing_of_a_clone_is_trainable(make):
    amp, model = prepared(make)
    trainable = len(model.trainable_variables)
    assert amp.convert_model(model, tf.constant(X)).trainable_variables == []
    assert len(model.trainable_variables) == trainable > 0


@pytest.mark.parametrize("make", [sequential, functional, Subclassed])
def test_layers_that_are_named_keep_float32(make):
    amp, model = prepared(make, "float32")
    policy = ua.Policy("bfloat16", "bfloat16", "bfloat16", keep_norm_float32=False, layer_overrides={"out": "float32"})
    made = amp.convert_model(model, tf.constant(X), policy=policy)
    wide = {layer.name for layer in made.layers if layer.weights and dtypes(layer) == {"float32"}}
    assert wide == {"out"}
    assert {each.dtype.name for each in tf.nest.flatten(made(X))} == {"bfloat16"}


def test_a_clone_in_pure_half_takes_half_the_bytes():
    amp, model = prepared(sequential, "float32")
    made = amp.convert_model(model, policy="float16")
    assert dtypes(made) == {"float16"}
    np.testing.assert_allclose(np.array(made(X), np.float32), np.array(model(X)), rtol=2**-6, atol=2**-6)


def test_what_cannot_be_cloned_is_refused():
    amp, model = prepared(Secretive)
    with pytest.raises(ua.UnsupportedError, match=r"'.*' cannot be cloned: no configuration.*get_config"):
        amp.convert_model(model, tf.constant(X))
    amp, model = prepared(Subclassed)
    with pytest.raises(ua.WrongObjectError, match="give example inputs"):
        amp.convert_model(model)
    with pytest.raises(ua.PrepareError, match="has no variables yet"):
        amp.convert_model(keras.Sequential([keras.layers.Dense(2)]))
