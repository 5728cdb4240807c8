"""Training, of what another file makes."""

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp
from network import losses_of, make


def main(use_amp):
    if use_amp:
        amp.init()
    ctx = [mx.cpu(0), mx.cpu(1)]
    net = make(ctx)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=False)
    if use_amp:
        amp.init_trainer(trainer)
    data = mx.nd.random.normal(shape=(32, 8))
    for _ in range(4):
        parts = gluon.utils.split_and_load(data, ctx)
        with autograd.record():
            losses = losses_of(net, parts)
            if use_amp:
                with amp.scale_loss(losses, trainer) as scaled:
                    autograd.backward(scaled)
            else:
                autograd.backward(losses)
        trainer.step(32)
    return [p.data(ctx[0]).asnumpy() for p in net.collect_params().values()]
