"""gluon-cv's classification: parts per device, a list of losses in a comprehension, batch size for the step."""

import argparse

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp


def train(net, ctx, opt):
    trainer = gluon.Trainer(net.collect_params(), "nag", {"learning_rate": 0.1, "momentum": 0.9}, update_on_kvstore=False)
    if opt.amp:
        amp.init_trainer(trainer)
    L = gluon.loss.SoftmaxCrossEntropyLoss()
    for i in range(4):
        batch = mx.nd.random.normal(shape=(12, 6)), mx.nd.arange(12) % 3
        data = gluon.utils.split_and_load(batch[0], ctx_list=ctx, batch_axis=0)
        label = gluon.utils.split_and_load(batch[1], ctx_list=ctx, batch_axis=0)
        with autograd.record():
            outputs = [net(X) for X in data]
            loss = [L(yhat, y) for yhat, y in zip(outputs, label)]
            if opt.amp:
                with amp.scale_loss(loss, trainer) as scaled_loss:
                    autograd.backward(scaled_loss)
            else:
                for l in loss:
                    l.backward()
        trainer.step(12)


def main(use_amp):
    opt = argparse.Namespace(amp=use_amp)
    if opt.amp:
        amp.init()
    mx.random.seed(1)
    ctx = [mx.cpu(0), mx.cpu(1)]
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="relu", in_units=6), gluon.nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.hybridize()
    train(net, ctx, opt)
    return [p.data(ctx[0]).asnumpy() for p in net.collect_params().values()]
