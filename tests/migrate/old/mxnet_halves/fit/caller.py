"""Makes the net, and calls the learner."""

import mxnet as mx
from engine import Learner
from mxnet import gluon
from mxnet.contrib import amp

import unifiedamp as ua


def before(flag):
    amp.init()
    net, batches = build()
    Learner().fit(net, batches)
    return [p.data().asnumpy() for p in net.collect_params().values()]


def after(flag):
    amp = ua.Amp("mxnet", policy="float32", loss_scale="dynamic")
    net, batches = build()
    Learner().fit(net, batches, amp=amp)
    return [p.data().asnumpy() for p in net.collect_params().values()]


def build():
    mx.random.seed(0)
    net = gluon.nn.Dense(3, in_units=5)
    net.initialize(mx.init.Xavier())
    return net, [(x, x[:, :3] * 4) for x in (mx.nd.random.normal(shape=(16, 5)) for _ in range(5))]
