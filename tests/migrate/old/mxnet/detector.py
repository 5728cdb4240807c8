"""A detector's way: lists of predictions go into one criterion, which returns lists; the step divides by one."""

import argparse

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp


class MultiLoss:
    def __init__(self):
        self.cls, self.box = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.HuberLoss()

    def __call__(self, cls_preds, box_preds, cls_targets, box_targets):
        count = sum(p.shape[0] for p in cls_preds)
        cls = [self.cls(p, t) / count for p, t in zip(cls_preds, cls_targets)]
        box = [self.box(p, t) / count for p, t in zip(box_preds, box_targets)]
        return [a + b for a, b in zip(cls, box)], cls, box


class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.body = gluon.nn.Dense(8, activation="relu", in_units=6)
            self.cls, self.box = gluon.nn.Dense(3, in_units=8), gluon.nn.Dense(4, in_units=8)

    def hybrid_forward(self, F, x):
        x = self.body(x)
        return self.cls(x), self.box(x)


def train(net, batches, ctx, args):
    net.collect_params().reset_ctx(ctx)
    trainer = gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": args.lr, "wd": 5e-4, "momentum": 0.9},
        update_on_kvstore=(False if args.amp else None),
    )

    if args.amp:
        amp.init_trainer(trainer)

    mbox_loss = MultiLoss()
    net.hybridize(static_alloc=True, static_shape=True)
    for batch in batches:
        data = gluon.utils.split_and_load(batch, ctx_list=ctx, batch_axis=0)
        with autograd.record():
            cls_preds = []
            box_preds = []
            for x in data:
                cls_pred, box_pred = net(x)
                cls_preds.append(cls_pred)
                box_preds.append(box_pred)
            sum_loss, cls_loss, box_loss = mbox_loss(
                cls_preds, box_preds, [x[:, :3].argmax(axis=1) for x in data], [x[:, :4] for x in data]
            )
            if args.amp:
                with amp.scale_loss(sum_loss, trainer) as scaled_loss:
                    autograd.backward(scaled_loss)
            else:
                autograd.backward(sum_loss)
        # since we have already normalized the loss, we don't want to normalize by batch-size anymore
        trainer.step(1)


def main(use_amp):
    args = argparse.Namespace(amp=use_amp, lr=0.1)
    if args.amp:
        amp.init()
    mx.random.seed(0)
    ctx = [mx.cpu(0), mx.cpu(1)]
    net = Net()
    net.initialize(mx.init.Xavier())
    train(net, [mx.nd.random.normal(shape=(16, 6)) for _ in range(4)], ctx, args)
    return [p.data(ctx[0]).asnumpy() for p in net.collect_params().values()]
