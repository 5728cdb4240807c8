"""The trainer is made here, for a net of another file, which has turned AMP on; gradients are clipped."""

from mxnet import autograd, gluon
from mxnet.contrib import amp


class Learner:
    def fit(self, net, batches):
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, update_on_kvstore=False
        )
        amp.init_trainer(trainer)
        params = [p for p in net.collect_params().values() if p.grad_req != "null"]
        loss_fn = gluon.loss.L2Loss()
        for x, y in batches:
            self.step(net, trainer, loss_fn, x, y, params)

    def step(self, net, trainer, loss_fn, x, y, params):
        with autograd.record():
            loss = loss_fn(net(x), y)
            with amp.scale_loss(loss, trainer) as scaled_loss:
                autograd.backward(scaled_loss)
        amp.unscale(trainer)
        grads = [p.grad(x.context) for p in params]
        gluon.utils.clip_global_norm(grads, 0.5 * 16)
        trainer.step(16)
