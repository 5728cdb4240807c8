"""A GAN of two trainers with AMP always on; each loss is scaled in its own region."""

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.contrib import amp


def main():
    amp.init()
    mx.random.seed(3)
    netG, netD = gluon.nn.Dense(4, in_units=3), gluon.nn.Dense(1, in_units=4)
    netG.initialize(mx.init.Normal(0.5))
    netD.initialize(mx.init.Normal(0.5))
    trainerG = gluon.Trainer(netG.collect_params(), "sgd", {"learning_rate": 0.05}, update_on_kvstore=False)
    trainerD = gluon.Trainer(netD.collect_params(), "sgd", {"learning_rate": 0.05}, update_on_kvstore=False)
    amp.init_trainer(trainerG)
    amp.init_trainer(trainerD)
    loss_fn = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    for _ in range(3):
        noise, data = nd.random.normal(shape=(6, 3)), nd.random.normal(shape=(6, 4))
        with autograd.record():
            errD_real = loss_fn(netD(data), nd.ones((6,)))
            fake = netG(noise)
            errD_fake = loss_fn(netD(fake.detach()), nd.zeros((6,)))
            errD = errD_real + errD_fake
            with amp.scale_loss(errD, trainerD) as scaled:
                scaled.backward()
        trainerD.step(6)
        with autograd.record():
            output = netD(netG(noise))
            errG = loss_fn(output, nd.ones((6,)))
            with amp.scale_loss(errG, trainerG) as scaled:
                scaled.backward()
        trainerG.step(6)
    return [p.data().asnumpy() for net in (netG, netD) for p in net.collect_params().values()]
