"""Makes net and trainer, and calls the loop."""

import mxnet as mx
from engine import training_loop
from mxnet import gluon
from mxnet.contrib import amp

import unifiedamp as ua


def before(flag):
    if flag:
        amp.init()
    net, trainer, batches = build()
    training_loop(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, batches, 16, amp_enabled=flag)
    return [p.data().asnumpy() for p in net.collect_params().values()]


def after(flag):
    amp = ua.Amp("mxnet", policy="float32", loss_scale="dynamic" if flag else "none")
    net, trainer, batches = build()
    net, trainer = amp.prepare(net, trainer)
    training_loop(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, batches, 16, amp_enabled=flag, amp=amp)
    return [p.data().asnumpy() for p in net.collect_params().values()]


def build():
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    batches = [(x, x[:, :4].argmax(axis=1)) for x in (mx.nd.random.normal(shape=(16, 8)) for _ in range(3))]
    return net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=False), batches
