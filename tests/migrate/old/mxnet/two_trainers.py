"""A generator and a discriminator with a trainer each."""

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp

amp.init()


def dense(out):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, activation="relu", in_units=4), gluon.nn.Dense(out, in_units=8))
    net.initialize(mx.init.Xavier())
    return net


def main():
    mx.random.seed(0)
    gen, dis = dense(4), dense(1)
    gen_trainer = gluon.Trainer(gen.collect_params(), "sgd", {"learning_rate": 0.1})
    dis_trainer = gluon.Trainer(dis.collect_params(), "sgd", {"learning_rate": 0.1})
    amp.init_trainer(gen_trainer)
    amp.init_trainer(dis_trainer)
    noise, real = mx.nd.random.normal(shape=(8, 4)), mx.nd.random.normal(shape=(8, 4))
    loss_fn = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    for _ in range(3):
        with autograd.record():
            err_d = loss_fn(dis(real), mx.nd.ones((8,))) + loss_fn(dis(gen(noise).detach()), mx.nd.zeros((8,)))
            with amp.scale_loss(err_d, dis_trainer) as scaled:
                autograd.backward(scaled)
        dis_trainer.step(8)
        with autograd.record():
            err_g = loss_fn(dis(gen(noise)), mx.nd.ones((8,)))
            with amp.scale_loss(err_g, gen_trainer) as scaled:
                autograd.backward(scaled)
        gen_trainer.step(8)
        dis_trainer.zero_grad() if hasattr(dis_trainer, "zero_grad") else None
    return [p.data().asnumpy() for net in (gen, dis) for p in net.collect_params().values()]
