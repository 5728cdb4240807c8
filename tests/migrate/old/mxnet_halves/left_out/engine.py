"""One epoch: a batch is left out where the norm of its gradients, which is clipped, is not finite."""

import math

from mxnet import autograd, gluon
from mxnet.contrib import amp


def train_epoch(net, trainer, batches, loss_fn, batch_size):
    for data, label in batches:
        with autograd.record():
            loss = loss_fn(net(data), label)
            with amp.scale_loss(loss, trainer) as scaled_loss:
                autograd.backward(scaled_loss)
        amp.unscale(trainer)
        grads = [p.grad() for p in net.collect_params().values()]
        norm = gluon.utils.clip_global_norm(grads, 0.5 * batch_size, check_isfinite=False)
        if math.isfinite(norm.asscalar()):
            trainer.step(batch_size)
