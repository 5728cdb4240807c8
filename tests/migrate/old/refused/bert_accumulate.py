"""gluon-nlp's BERT: gradients add up over micro-batches, and are reduced and clipped before update."""

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp


def main():
    amp.init()
    mx.random.seed(2)
    net = gluon.nn.Dense(2, in_units=4)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, update_on_kvstore=False)
    amp.init_trainer(trainer)
    params = [p for p in net.collect_params().values() if p.grad_req != "null"]
    for p in params:
        p.grad_req = "add"
    for i in range(4):
        with autograd.record():
            ls = (net(mx.nd.ones((3, 4))) ** 2).mean()
            with amp.scale_loss(ls, trainer) as scaled_loss:
                scaled_loss.backward()
        if i % 2:
            trainer.allreduce_grads()
            amp.unscale(trainer)
            gluon.utils.clip_global_norm([p.grad() for p in params], 1)
            trainer.update(1)
            net.collect_params().zero_grad()
    return [p.data().asnumpy() for p in params]
