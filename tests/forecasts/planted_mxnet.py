"""The planted model of Gluon."""

from planted import CLASSES, FAINT, RATE, WIDTH, Built

from unifiedamp_mxnet.mxnet_api import gluon, mx


class Fade(mx.autograd.Function):
    def forward(self, x):
        return x * 1

    def backward(self, grad):
        return grad * FAINT


class Planted(gluon.Block):
    def __init__(self, parts, faint):
        super().__init__()
        self.parts, self.faint = parts, faint
        for part in range(parts):
            setattr(self, f"l{part}", gluon.nn.Dense(CLASSES, in_units=WIDTH, weight_initializer="zeros"))

    def forward(self, x):
        outs = [getattr(self, f"l{part}")(x[part]) for part in range(self.parts)]
        return sum(Fade()(out) if part in self.faint else out for part, out in enumerate(outs))


def build(parts, faint):
    model = Planted(parts, faint)
    model.initialize()
    for part in faint:
        for param in getattr(model, f"l{part}").collect_params().values():
            param.lr_mult = 1 / FAINT
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": RATE}, update_on_kvstore=False)
    entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    return Built(model, trainer, lambda out, y: entropy(out[: len(y)], y).mean())
