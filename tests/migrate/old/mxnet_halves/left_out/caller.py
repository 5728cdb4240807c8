"""Makes net and trainer, and calls the loop."""

import mxnet as mx
from engine import train_epoch
from mxnet import gluon
from mxnet.contrib import amp

import unifiedamp as ua


def before(flag):
    if flag:
        amp.init()
    net, trainer, batches = build()
    train_epoch(net, trainer, batches, gluon.loss.SoftmaxCrossEntropyLoss(), 16)
    return [p.data().asnumpy() for p in net.collect_params().values()]


def after(flag):
    amp = ua.Amp("mxnet", policy="float32", loss_scale="dynamic" if flag else "none")
    net, trainer, batches = build()
    net, trainer = amp.prepare(net, trainer)
    train_epoch(net, trainer, batches, gluon.loss.SoftmaxCrossEntropyLoss(), 16, amp=amp)
    return [p.data().asnumpy() for p in net.collect_params().values()]


def build():
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    batches = [(x, x[:, :4].argmax(axis=1)) for x in (mx.nd.random.normal(shape=(16, 8)) for _ in range(3))]
    batches.insert(1, (batches[0][0] * float("inf"), batches[0][1]))
    return net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=False), batches
