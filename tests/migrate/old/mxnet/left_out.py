"""A batch is left out where the norm of its gradients, which is clipped, is too large."""

import math

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp


def main(use_amp):
    fp16 = use_amp
    if fp16:
        amp.init()
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    data = mx.nd.random.normal(shape=(16, 8))
    label = data[:, :4].argmax(axis=1)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=False)
    if fp16:
        amp.init_trainer(trainer)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    batch_size = 16
    for batch in range(5):
        scale = float("inf") if batch == 2 else 1.0
        with autograd.record():
            loss = loss_fn(net(data * scale), label)
            if fp16:
                with amp.scale_loss(loss, trainer) as scaled_loss:
                    autograd.backward(scaled_loss)
            else:
                autograd.backward(loss)
        if fp16:
            amp.unscale(trainer)
        grads = [p.grad() for p in net.collect_params().values()]
        norm = gluon.utils.clip_global_norm(grads, 0.5 * batch_size, check_isfinite=False)
        if not math.isfinite(norm.asscalar()):
            continue
        trainer.step(batch_size)
    return [p.data().asnumpy() for p in net.collect_params().values()]
