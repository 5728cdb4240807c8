"""The functions are taken from the package's inner module, and backward follows the region."""

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib.amp import amp

amp.init()


def main():
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    data = mx.nd.random.normal(shape=(16, 8))
    label = data[:, :4].argmax(axis=1)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    amp.init_trainer(trainer)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(4):
        with autograd.record():
            loss = loss_fn(net(data), label)
        with amp.scale_loss(loss, trainer) as scaled_loss:
            scaled_loss.backward()
        trainer.step(data.shape[0])
    return [p.data().asnumpy() for p in net.collect_params().values()]
