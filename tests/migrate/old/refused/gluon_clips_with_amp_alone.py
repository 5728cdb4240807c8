"""Gradients are unscaled and clipped with AMP alone; without it they are not clipped."""

from mxnet import autograd, gluon
from mxnet.contrib import amp


def train(data, opt, loss_fn):
    if opt.amp:
        amp.init()
    net = gluon.nn.Dense(2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    if opt.amp:
        amp.init_trainer(trainer)
    for x, y in data:
        with autograd.record():
            loss = loss_fn(net(x), y)
            if opt.amp:
                with amp.scale_loss(loss, trainer) as scaled_loss:
                    autograd.backward(scaled_loss)
            else:
                loss.backward()
        if opt.amp:
            amp.unscale(trainer)
            grads = [p.grad() for p in net.collect_params().values()]
            gluon.utils.clip_global_norm(grads, 1.0)
        trainer.step(8)
