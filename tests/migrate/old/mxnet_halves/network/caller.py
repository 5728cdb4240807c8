"""Makes net and trainer, and calls the epoch."""

from argparse import Namespace

import mxnet as mx
from engine import train_epoch
from mxnet import gluon
from mxnet.contrib import amp

import unifiedamp as ua

CTX = [mx.cpu(0), mx.cpu(1)]


def before(flag):
    if flag:
        amp.init()
    net, trainer, batches = build()
    if flag:
        amp.init_trainer(trainer)
    train_epoch(net, gluon.loss.L2Loss(), trainer, batches, Namespace(ctx=CTX, amp=flag, batch_size=8))
    return [p.data(CTX[0]).asnumpy() for p in net.collect_params().values()]


def after(flag):
    amp = ua.Amp("mxnet", policy="float32", loss_scale="dynamic" if flag else "none")
    net, trainer, batches = build()
    net, trainer = amp.prepare(net, trainer)
    train_epoch(net, gluon.loss.L2Loss(), trainer, batches, Namespace(ctx=CTX, amp=flag, batch_size=8), amp)
    return [p.data(CTX[0]).asnumpy() for p in net.collect_params().values()]


def build():
    mx.random.seed(0)
    net = gluon.nn.Dense(3, in_units=5)
    net.initialize(mx.init.Xavier(), ctx=CTX)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, update_on_kvstore=False)
    return net, trainer, [(x, x[:, :3] * 4) for x in (mx.nd.random.normal(shape=(8, 5)) for _ in range(4))]
