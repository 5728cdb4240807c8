"""Horovod's trainer, the scaler's own attribute, and gradients clipped and stepped in parts, under one flag."""

import sys

import horovod.mxnet as hvd
from mxnet import autograd, gluon
from mxnet.contrib import amp

use_amp = "--amp" in sys.argv
if use_amp:
    amp.init()
net = gluon.nn.Dense(1)
net.initialize()
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd")
if use_amp:
    amp.init_trainer(trainer)


def train(batches, loss_fn, most):
    for place, (x, y) in enumerate(batches):
        with autograd.record():
            loss = loss_fn(net(x), y).mean()
            if use_amp:
                with amp.scale_loss(loss, trainer) as scaled:
                    autograd.backward(scaled)
                    limit = most * trainer._amp_loss_scaler.loss_scale
            else:
                autograd.backward(loss)
                limit = most
        if place % 2:
            trainer.allreduce_grads()
            gluon.utils.clip_global_norm([p.grad() for p in net.collect_params().values()], limit)
            trainer.update(1)
