"""Network and trainer are attributes of a class."""

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp


class Classifier:
    def __init__(self):
        amp.init()
        self.net = gluon.nn.HybridSequential()
        self.net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
        self.net.initialize(mx.init.Xavier())
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self.trainer = gluon.Trainer(self.net.collect_params(), "sgd", {"learning_rate": 0.1})
        amp.init_trainer(self.trainer)

    def step(self, data, label):
        with autograd.record():
            loss = self.loss(self.net(data), label)
            with amp.scale_loss(loss, self.trainer) as scaled:
                scaled.backward()
        self.trainer.step(data.shape[0])
        return loss.mean().asscalar()


def main():
    mx.random.seed(0)
    model = Classifier()
    data = mx.nd.random.normal(shape=(16, 8))
    for _ in range(4):
        model.step(data, data[:, :4].argmax(axis=1))
    return [p.data().asnumpy() for p in model.net.collect_params().values()]
