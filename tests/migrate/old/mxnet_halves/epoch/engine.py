"""Epochs of training with a trainer that is a parameter; AMP is behind a flag."""

import mxnet as mx
from mxnet.contrib import amp


def training_loop(net, loss_fn, trainer, batches, batch_size, epochs=2, amp_enabled=False):
    if amp_enabled:
        amp.init_trainer(trainer)
    total = 0.0
    for _ in range(epochs):
        for data, label in batches:
            with mx.autograd.record():
                output = net(data)
                loss = loss_fn(output, label)
                if amp_enabled:
                    with amp.scale_loss(loss, trainer) as scaled_loss:
                        mx.autograd.backward(scaled_loss)
                else:
                    loss.backward()
            trainer.step(batch_size)
            total += loss.mean().asscalar()
    return total


def plain_loop(net, loss_fn, trainer, batches, batch_size):
    for data, label in batches:
        with mx.autograd.record():
            loss = loss_fn(net(data), label)
        loss.backward()
        trainer.step(batch_size)
