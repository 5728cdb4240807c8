"""amp.init with a dtype, and all of it under the main guard's function."""

import mxnet as mx


def main():
    mx.contrib.amp.init(target_dtype="bfloat16")
    mx.random.seed(0)
    net = mx.gluon.nn.Dense(4, in_units=8)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    mx.contrib.amp.init_trainer(trainer)
    data = mx.nd.random.normal(shape=(16, 8))
    loss_fn = mx.gluon.loss.L2Loss()
    for _ in range(3):
        with mx.autograd.record():
            loss = loss_fn(net(data), data[:, :4])
            with mx.contrib.amp.scale_loss(loss, trainer) as scaled_loss:
                mx.autograd.backward(scaled_loss)
        trainer.step(16)
    return [p.data().asnumpy() for p in net.collect_params().values()]


if __name__ == "__main__":
    main()
