"""Losses of several contexts; the size of a batch is a part of the arguments, and a helper is called in between."""

from mxnet import autograd as ag
from mxnet import gluon
from mxnet.contrib import amp


def run_batch(net, losses_of, trainer, batch, args):
    data = gluon.utils.split_and_load(batch[0], ctx_list=args.ctx)
    label = gluon.utils.split_and_load(batch[1], ctx_list=args.ctx)
    with ag.record():
        losses = [losses_of(net(x), y) for x, y in zip(data, label)]
        if args.amp:
            with amp.scale_loss(losses, trainer) as scaled:
                ag.backward(scaled)
        else:
            ag.backward(losses)
    trainer.step(args.batch_size)
    return sum(each.mean().asscalar() for each in losses)


def train_epoch(net, losses_of, trainer, batches, args):
    return [run_batch(net, losses_of, trainer, batch, args) for batch in batches]
