"""The toy's harness: a forward function for each model the suite asks for."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np

import unifiedamp as ua
from unifiedamp.conformance.harness import Harness

from . import autograd as toy


def dense(model, name, x):
    """A dense layer in the dtype that the policy gives it."""
    before = toy.state.autocast
    override = model.layer_dtypes.get(name)
    if override is not None:
        toy.state.autocast = None if override == "float32" else override
        x = toy.cast(x, override)
    try:
        out = toy.matmul(x, model.parameters[f"{name}.weight"])
        return toy.add(out, toy.cast(model.parameters[f"{name}.bias"], out.dtype))
    finally:
        toy.state.autocast = before


class ToyHarness(Harness):
    """Makes the toy's objects."""

    backend = "toy"
    scaling_policies = ("mixed_float16", "mixed_bfloat16")

    def __init__(self):
        self.forms = {"eager": {}}

    def probe(self, values):
        weights = {f"w{i}": toy.Tensor(np.float32([value])) for i, value in enumerate(values)}

        def forward(model, x):
            terms = [toy.total(toy.mul(p, toy.index(x, i))) for i, p in enumerate(model.parameters.values())]
            out = terms[0]
            for term in terms[1:]:
                out = toy.add(out, term)
            return out

        return toy.Model(weights, forward)

    def mlp(self, weights):
        parameters = {}
        for i, (weight, bias) in enumerate(weights):
            parameters[f"layer{i}.weight"], parameters[f"layer{i}.bias"] = toy.Tensor(weight), toy.Tensor(bias)

        def forward(model, x):
            for i in range(len(weights)):
                x = dense(model, f"layer{i}", toy.relu(x) if i else x)
            return x

        model = toy.Model(parameters, forward)
        model.layers = [f"layer{i}" for i in range(len(weights))]
        return model

    def convnet(self, seed):
        rng = np.random.default_rng(seed)
        shapes = {"conv.weight": (64, 32), "conv.bias": (32,), "head.weight": (32, 10), "head.bias": (10,)}
        parameters = {name: toy.Tensor(rng.normal(0, 0.1, shape).astype(np.float32)) for name, shape in shapes.items()}
        running = {"mean": np.zeros(32, np.float32), "var": np.ones(32, np.float32)}

        def forward(model, x):
            x = dense(model, "conv", x)
            mean, var = running["mean"], running["var"]
            if model.training:
                mean, var = x.data.mean(0), x.data.var(0)
                running["mean"] = 0.9 * running["mean"] + 0.1 * mean
                running["var"] = 0.9 * running["var"] + 0.1 * var
            return dense(model, "head", toy.relu(toy.normalise(x, mean, var)))

        model = toy.Model(parameters, forward)
        model.layers = ["conv", "norm", "head"]
        return model

    def image_batch(self, array):
        return array.reshape(len(array), -1)

    def sgd(self, models, learning_rate, momentum=0.0):
        return toy.Sgd(models, learning_rate, momentum)

    def adam(self, models, learning_rate):
        return toy.Adam(models, learning_rate)

    def mean_square(self, output, target):
        difference = toy.add(output, toy.mul(target, toy.constant(-1.0)))
        return toy.mul(toy.total(toy.mul(difference, difference)), toy.constant(1.0 / output.data.size))

    def cross_entropy(self, logits, labels):
        return toy.log_softmax_pick(logits, labels.data)

    def parameters(self, model):
        return {name: p.data.astype(np.float64) for name, p in model.parameters.items()}

    def set_parameters(self, model, values):
        for name, value in values.items():
            model.parameters[name].data = value.astype(np.float32)

    def optimizer_steps(self, optimizer):
        return optimizer.steps

    def set_gradients(self, amp, optimizer, values):
        for name, value in values.items():
            optimizer.parameters[name].grad = np.asarray(value, np.float32)

    @contextmanager
    def interrupted_update(self, optimizer, error):
        apply = optimizer.apply

        def broken(gradients):
            first = next(iter(gradients))
            apply({first: gradients[first]})
            raise error

        optimizer.apply = broken
        try:
            yield
        finally:
            del optimizer.apply

    def native_backward(self, loss):
        loss.backward()
        return True

    def native_step(self, optimizer):
        optimizer.step()
        return True

    def run_op(self, op):
        x = toy.Tensor(np.ones((8, 8), np.float32))
        runs = {"matmul": lambda: toy.matmul(x, x), "sum": lambda: toy.total(x), "relu": lambda: toy.relu(x)}
        return runs[op]().dtype if op in runs else None

    def global_state(self):
        return (toy.state.autocast, toy.state.recording, toy.state.training)

    def dtype_of(self, tensor):
        return tensor.dtype

    def set_trainable(self, model, layer, trainable):
        for name, parameter in model.parameters.items():
            if name.startswith(f"{layer}."):
                parameter.frozen = not trainable

    def attached(self, obj):
        if isinstance(obj, toy.Model):
            return obj.training, obj.output_dtype, dict(obj.layer_dtypes), sorted(vars(obj))
        return sorted(vars(obj))

    def device_run(self, gradients, loss_scale):
        """Two devices are two parameters of one optimizer, the second's name ending in ``@1``."""
        amp = ua.Amp(self.backend, "float32", loss_scale=loss_scale)
        parameters = {"w": toy.Tensor(np.float32([1.0])), "w@1": toy.Tensor(np.float32([1.0]))}

        def forward(model, x):
            terms = [toy.total(toy.mul(p, toy.index(x, i))) for i, p in enumerate(model.parameters.values())]
            return toy.add(*terms)

        model = toy.Model(parameters, forward)
        model, optimizer = amp.prepare(model, self.sgd([model], 0.1))
        x = amp.to_native(np.float32(gradients))
        amp.backward(lambda: model(x), optimizer)
        amp.step(optimizer)
        return [(float(p.data[0]), amp.skipped_steps) for p in parameters.values()]


harness = ToyHarness()
