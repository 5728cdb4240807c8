"""An elementwise model with float16 parameters, and what trains it: the CPU has no float16 matrix product."""

import numpy as np

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import NUMPY_API, from_numpy, gluon, mx
from unifiedamp_mxnet.precision.operations import PRODUCTS

PURE = ua.Policy("float16", "float16", "float16", op_overrides=dict.fromkeys(PRODUCTS, "float32"))
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
START = [1.0, -2.0, 0.5, 1.0 / 3.0]
OPTIMIZERS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "nag": {"momentum": 0.9},
    "adam": {},
    "lamb": {},
    "rmsprop": {},
    "adagrad": {},
    "dcasgd": {},
}


class Product(gluon.HybridBlock):
    """sum(w * x): the gradient of w is x."""

    def __init__(self, values=START):
        super().__init__()
        init = mx.init.Constant(0.0)
        shape = (len(values),)
        self.w = (
            gluon.Parameter("w", shape=shape, init=init) if NUMPY_API else self.params.get("w", shape=shape, init=init)
        )

    if NUMPY_API:

        def forward(self, x):
            return (self.w.data(x.device) * x).sum()

    else:

        def hybrid_forward(self, F, x, w):
            return F.sum(w * x)


def product(values=START, contexts=None):
    model = Product(values)
    model.initialize(ctx=contexts or mx.cpu())
    model.w.set_data(from_numpy(np.asarray(values, np.float32), mx.cpu()))
    return model


def trainer_of(model, kind, lr=2.0**-10):
    name = "sgd" if kind == "momentum" else kind
    return gluon.Trainer(model.collect_params(), name, {"learning_rate": lr, **OPTIMIZERS[kind]})


def session(policy=PURE, **options):
    return ua.Amp("mxnet", policy, **{"master_weights": True, "loss_scale": SCALE} | options)


def prepared(kind="sgd", values=START, lr=2.0**-10, **options):
    amp = session(**options)
    model = product(values)
    return amp, *amp.prepare(model, trainer_of(model, kind, lr))


def feed(amp, model, trainer, values, compiled=False):
    def step(x):
        amp.backward(lambda: model(x), trainer)
        return amp.step(trainer)

    return (amp.compile(step) if compiled else step)(amp.to_native(np.asarray(values, np.float32)))


def master(amp, model):
    return amp.master_weights(model)["w"]


def half(values):
    return from_numpy(np.asarray(values, np.float16), mx.cpu()).as_nd_ndarray()


def gradients(steps=12, seed=0):
    """float16 numbers, so that no cast of a gradient rounds."""
    return np.random.default_rng(seed).normal(size=(steps, len(START))).astype(np.float16)
