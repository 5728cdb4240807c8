"""A hybridized Gluon network with dynamic loss scaling, as write-ups of mxnet.contrib.amp train it."""

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp

amp.init()


def make_data(batches=4, rows=16):
    mx.random.seed(1)
    return [
        (mx.nd.random.normal(shape=(rows, 1, 8, 8)), mx.nd.random.randint(0, 4, shape=(rows,)).astype("float32"))
        for _ in range(batches)
    ]


def make_model():
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(8, 3, padding=1, in_channels=1),
        gluon.nn.BatchNorm(in_channels=8),
        gluon.nn.Activation("relu"),
        gluon.nn.Flatten(),
        gluon.nn.Dense(4, in_units=512),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    return net


def train(steps):
    net = make_model()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    amp.init_trainer(trainer)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    data = make_data()
    losses = []

    for step in range(steps):
        x, label = data[step % len(data)]
        batch_size = x.shape[0]
        with autograd.record():
            out = net(x)
            loss = loss_fn(out, label)
            with amp.scale_loss(loss, trainer) as scaled_loss:
                autograd.backward(scaled_loss)
        trainer.step(batch_size)
        losses.append(float(loss.mean().asscalar()))
    return losses
