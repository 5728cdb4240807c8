"""The backward pass stands in a second region of autograd.record(), with nothing else in it."""

import mxnet as mx
from mxnet import autograd as ag
from mxnet import gluon
from mxnet.contrib import amp


def main(use_amp):
    if use_amp:
        amp.init()
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    data = mx.nd.random.normal(shape=(32, 8))
    target = data[:, :4].argmax(axis=1)

    def train(epochs):
        trainer = gluon.Trainer(net.collect_params(), "nag", {"learning_rate": 0.1, "momentum": 0.5}, kvstore=None)
        if use_amp:
            amp.init_trainer(trainer)
        loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
        for _ in range(epochs):
            parts = gluon.utils.split_and_load(data, ctx_list=[mx.cpu()])
            labels = gluon.utils.split_and_load(target, ctx_list=[mx.cpu()])
            with ag.record():
                output = [net(part) for part in parts]
                loss = [loss_fn(out, y) for out, y in zip(output, labels)]
            if use_amp:
                with ag.record():
                    with amp.scale_loss(loss, trainer) as scaled_loss:
                        ag.backward(scaled_loss)
                        # scaled_loss.backward()
            else:
                for each in loss:
                    each.backward()
            trainer.step(32)

    train(4)
    return [p.data().asnumpy() for p in net.collect_params().values()]
