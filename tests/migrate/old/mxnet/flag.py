"""gluon-cv's way: AMP behind an option, losses of several contexts, scaled inside record()."""

from argparse import Namespace

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp


def train(net, data, label, ctx, opt):
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=False)
    if opt.amp:
        amp.init_trainer(trainer)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(4):
        x = gluon.utils.split_and_load(data, ctx_list=ctx)
        y = gluon.utils.split_and_load(label, ctx_list=ctx)
        with autograd.record():
            outputs = [net(part) for part in x]
            losses = [loss_fn(out, want) for out, want in zip(outputs, y)]
            if opt.amp:
                with amp.scale_loss(losses, trainer) as scaled_loss:
                    autograd.backward(scaled_loss)
            else:
                autograd.backward(losses)
        trainer.step(opt.batch_size)


def main(use_amp):
    opt = Namespace(amp=use_amp, batch_size=32)
    if opt.amp:
        amp.init()
    ctx = [mx.cpu(0), mx.cpu(1)]
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.hybridize()
    data = mx.nd.random.normal(shape=(32, 8))
    train(net, data, data[:, :4].argmax(axis=1), ctx, opt)
    return [p.data(ctx[0]).asnumpy() for p in net.collect_params().values()]
