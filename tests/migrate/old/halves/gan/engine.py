"""A GAN's step: two models, two optimizers, one scaler; a local variable is called amp."""

import torch


def step(generator, discriminator, opt_g, opt_d, grad_scaler, args, noise, real):
    amp = bool(args.amp)
    with torch.autocast("cuda", enabled=amp):
        fake = generator(noise)
        loss_d = discriminator(fake.detach()).float().mean() - discriminator(real).float().mean()
    opt_d.zero_grad()
    grad_scaler.scale(loss_d).backward()
    grad_scaler.step(opt_d)
    with torch.autocast("cuda", enabled=amp):
        loss_g = -discriminator(generator(noise)).float().mean()
    opt_g.zero_grad()
    grad_scaler.scale(loss_g).backward()
    grad_scaler.step(opt_g)
    grad_scaler.update()
    return loss_g.item()


def save(generator, discriminator):
    return generator.state_dict(), discriminator.state_dict()
