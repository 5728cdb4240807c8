"""A word model: the norm is clipped over unscaled gradients, the limit times the batch size."""

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp


def main():
    amp.init()
    mx.random.seed(4)
    model = gluon.nn.HybridSequential()
    model.add(gluon.nn.Embedding(9, 5), gluon.nn.Dense(9, in_units=20))
    model.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.5}, update_on_kvstore=False)
    amp.init_trainer(trainer)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    batch_size = 4
    for _ in range(4):
        data, target = mx.nd.random.randint(0, 9, (batch_size, 4)), mx.nd.random.randint(0, 9, (batch_size,))
        with autograd.record():
            output = model(data)
            loss = loss_fn(output, target)
            with amp.scale_loss(loss, trainer) as scaled_loss:
                scaled_loss.backward()
        amp.unscale(trainer)
        grads = [p.grad(mx.cpu()) for p in model.collect_params().values()]
        gluon.utils.clip_global_norm(grads, 0.2 * batch_size)
        trainer.step(batch_size)
    return [p.data().asnumpy() for p in model.collect_params().values()]
