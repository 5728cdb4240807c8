"""A batch split over several contexts, gradients clipped after amp.unscale: a list of losses is scaled at once."""

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp

amp.init()

ctx = [mx.cpu(0), mx.cpu(1)]


def train(steps):
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(1, in_units=16))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.02}, update_on_kvstore=False)
    amp.init_trainer(trainer)
    l2_loss = gluon.loss.L2Loss()
    data = mx.nd.random.normal(shape=(32, 8))
    label = data.sum(axis=1, keepdims=True)
    batch_size = 32
    losses = []
    for _ in range(steps):
        x = gluon.utils.split_and_load(data, ctx)
        y = gluon.utils.split_and_load(label, ctx)
        with autograd.record():
            loss = [l2_loss(net(a), b) for a, b in zip(x, y)]
            with amp.scale_loss(loss, trainer) as scaled_loss:
                autograd.backward(scaled_loss)
        amp.unscale(trainer)
        for device in ctx:
            grads = [p.grad(device) for p in net.collect_params().values()]
            gluon.utils.clip_global_norm(grads, 50.0 * batch_size)
        trainer.step(batch_size)
        losses.append(float(sum(l.mean().asscalar() for l in loss)))
    return losses
