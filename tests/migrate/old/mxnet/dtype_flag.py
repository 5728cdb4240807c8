"""The dtype is the flag; the loss is a mean already, and the step divides by one."""

import argparse

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp


def main(use_amp):
    args = argparse.Namespace(dtype="float16" if use_amp else "float32", lr=0.1)
    if args.dtype == "float16":
        amp.init()
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    data = mx.nd.random.normal(shape=(16, 8))
    label = data[:, :4].argmax(axis=1)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": args.lr}, update_on_kvstore=False)
    if args.dtype == "float16":
        amp.init_trainer(trainer)
    loss_function = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(4):
        with autograd.record():
            out = net(data)
            ls = loss_function(out, label).mean()
            if args.dtype == "float16":
                with amp.scale_loss(ls, trainer) as scaled_loss:
                    autograd.backward(scaled_loss)
            else:
                ls.backward()
        trainer.step(1)
    return [p.data().asnumpy() for p in net.collect_params().values()]
