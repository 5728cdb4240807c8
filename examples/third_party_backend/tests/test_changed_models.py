"""Models that change after they were prepared, and the optimizer's own ``update``."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from unifiedamp_jax import Optimizer

import unifiedamp as ua


def prepared(model, tx):
    amp = ua.Amp("jax", "float32", loss_scale=4.0)
    return amp, *amp.prepare(model, Optimizer(model, tx))


class Stack(nnx.Module):
    """Linear layers of one input and output, one after the other."""

    def __init__(self, *weights):
        self.layers = nnx.List([one_weight(weight) for weight in weights])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def one_weight(value):
    layer = nnx.Linear(1, 1, use_bias=False, rngs=nnx.Rngs(0))
    layer.kernel.set_value(jnp.full((1, 1), value))
    return layer


@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_inserted_before_others_gets_its_own_gradients(compiled):
    """The places of the others in the model change, whether the compiled step is traced anew or not."""
    model = Stack(2.0, 3.0)
    amp = ua.Amp("jax", "float32", loss_scale=4.0)
    first = Optimizer(model.layers[0], optax.sgd(0.125))
    second = Optimizer(model.layers[1], optax.sgd(0.0))
    model, first, second = amp.prepare(model, first, second)

    def step():
        amp.backward(lambda: model(jnp.ones((1, 1))).sum(), [first, second])
        amp.step(first)
        amp.step(second)

    step = amp.compile(step) if compiled else step
    step()
    model.layers.insert(0, one_weight(5.0))
    amp.prepare(model, Optimizer(model.layers[0], optax.sgd(0.0)))
    step()
    model.layers[1], model.layers[2] = model.layers[2], model.layers[1]
    step()
    kernels = [float(layer.kernel.get_value()[0, 0]) for layer in model.layers]
    assert kernels == [5.0, 3.0, 2.0 - 0.125 * 3 - 2 * 0.125 * 15]


def test_an_optimizer_of_a_model_that_grew_is_refused():
    """Its slots do not fit; optax raised an error about trees."""
    amp, model, optimizer = prepared(Stack(1.0), optax.adam(0.1))
    model.layers.append(one_weight(1.0))
    amp.prepare(model, Optimizer(model.layers[1], optax.sgd(0.1)))
    amp.backward(lambda: model(jnp.ones((1, 1))).sum(), optimizer)
    with pytest.raises(ua.PrepareError, match=r"layers\.1\.kernel.* came into the model"):
        amp.step(optimizer)


@pytest.mark.parametrize("compiled", [False, True])
def test_update_is_refused_while_a_step_waits(compiled):
    """It would apply gradients times the loss scale."""
    amp, model, optimizer = prepared(Stack(1.0), optax.sgd(0.1))

    def native():
        amp.backward(lambda: model(jnp.ones((1, 1))).sum(), optimizer)
        optimizer.update(model, {"layers": {0: {"kernel": nnx.Param(amp.gradients(optimizer)["layers.0.kernel"])}}})

    def step():
        amp.backward(lambda: model(jnp.ones((1, 1))).sum(), optimizer)
        amp.step(optimizer)

    native, step = [amp.compile(each) if compiled else each for each in (native, step)]
    with pytest.raises(ua.StepOrderError, match=r"amp\.step\(optimizer\) applies them"):
        native()
    amp.discard_step(optimizer)
    assert float(model.layers[0].kernel.get_value()[0, 0]) == 1.0
    step()
    np.testing.assert_allclose(model.layers[0].kernel.get_value(), 0.9, rtol=1e-6)
    state = nnx.state(model, nnx.Param)
    optimizer.update(model, jax.tree.map(jnp.ones_like, state))
    amp.close()
    optimizer.update(model, jax.tree.map(jnp.ones_like, state))
    np.testing.assert_allclose(model.layers[0].kernel.get_value(), 0.7, rtol=1e-6)
