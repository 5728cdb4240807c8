"""The same in MXNet 2's spelling: mxnet.amp, on mx.np arrays."""

import mxnet as mx
from mxnet import amp, autograd, gluon, np, npx

npx.set_np()
amp.init()


def make_data(batches=4, rows=16):
    mx.np.random.seed(1)
    images = [np.random.normal(size=(rows, 8)) for _ in range(batches)]
    return [(x, x[:, :4].argmax(axis=1)) for x in images]


def train(steps):
    mx.np.random.seed(0)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu", in_units=8), gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.3})
    amp.init_trainer(trainer)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    data = make_data()
    losses = []
    for step in range(steps):
        x, label = data[step % len(data)]
        with autograd.record():
            loss = loss_fn(net(x), label)
            with amp.scale_loss(loss, trainer) as scaled_loss:
                autograd.backward(scaled_loss)
        trainer.step(x.shape[0])
        losses.append(loss.mean().item())
    return losses
