"""Losses are appended to a list, one for each context, and summed up of two terms."""

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp

amp.init()


def main():
    ctx = [mx.cpu(0), mx.cpu(1)]
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    data = mx.nd.random.normal(shape=(32, 8))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "wd": 1e-3}, update_on_kvstore=False)
    amp.init_trainer(trainer)
    loss_fn, extra = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L2Loss()
    for _ in range(4):
        parts = gluon.utils.split_and_load(data, ctx)
        sum_losses = []
        with autograd.record():
            for part in parts:
                out = net(part)
                loss = loss_fn(out, part[:, :4].argmax(axis=1))
                sum_losses.append(loss + 0.1 * extra(out, part[:, :4]))
            with amp.scale_loss(sum_losses, trainer) as scaled_losses:
                autograd.backward(scaled_losses)
        trainer.step(32)
    return [p.data(ctx[0]).asnumpy() for p in net.collect_params().values()]
