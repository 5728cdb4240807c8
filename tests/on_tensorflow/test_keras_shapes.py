"""The sizes of layers that the shared suite has no harness for."""

import tensorflow as tf

import unifiedamp as ua

layers = tf.keras.layers


def sizes(model):
    found = ua.Amp("tensorflow", "float32").backend.layer_shapes.matmul_shapes([model])
    return {shape.layer: (shape.kind, dict(shape.dimensions)) for shape in found}


def test_attention_and_cells():
    x = tf.keras.Input((4, 30))
    y = layers.LSTM(6, name="lstm")(layers.MultiHeadAttention(3, 10, name="attention")(x, x))
    found = sizes(tf.keras.Model(x, layers.Dense(3, name="head")(y)))
    assert found.pop("attention") == ("attention", {"embedding": 30, "head size": 10})
    assert found.pop("head") == ("linear", {"inputs": 6, "outputs": 3})
    assert list(found.values()) == [("rnn", {"inputs": 30, "units": 6})]


def test_convolutions():
    first, second = layers.Conv2D(12, 3, groups=2, name="grouped"), layers.Conv2DTranspose(5, 3, name="back")
    model = tf.keras.Sequential([tf.keras.Input((8, 8, 6)), layers.DepthwiseConv2D(3), first, second])
    assert sizes(model) == {
        "grouped": ("conv", {"input channels": 3, "output channels": 6}),
        "back": ("conv", {"input channels": 12, "output channels": 5}),
    }
