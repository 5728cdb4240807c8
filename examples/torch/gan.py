"""A GAN on small images: two optimizers share one loss scale; each is skipped separately."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import unifiedamp as ua
from examples.common import Log, PolicyName, Smoke, batches, images, mixed_policy, run

NOISE = 64


def main(smoke: Smoke = False, policy: PolicyName = None, epochs: int = 20, batch_size: int = 128) -> None:
    """Train a generator and a discriminator (DCGAN)."""
    width, steps = (8, 30) if smoke else (64, None)
    data = images("torch", smoke, channels=1)
    amp = ua.Amp("torch", policy or mixed_policy("torch"), loss_scale="dynamic")
    torch.manual_seed(0)
    with amp.scope():
        generator, discriminator = make_generator(width), make_discriminator(width)
        g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
        d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    generator, discriminator, g_optimizer, d_optimizer = amp.prepare(generator, discriminator, g_optimizer, d_optimizer)
    g_log, d_log = Log(amp, every=10_000), Log(amp, every=10 if smoke else 500)

    low, high = float(data.train_images.min()), float(data.train_images.max())
    for real, _ in batches(amp, data, 32 if smoke else batch_size, epochs, steps):
        real = 2 * (real - low) / (high - low) - 1  # the range of the generator's tanh
        noise = torch.randn(len(real), NOISE, 1, 1, device=real.device)
        with amp.autocast():
            fake = generator(noise)
            d_loss = judged(discriminator, real, 1.0) + judged(discriminator, fake.detach(), 0.0)
        with amp.scale_loss(d_loss, d_optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(d_optimizer)

        with amp.autocast():
            g_loss = judged(discriminator, fake, 1.0)
        with amp.scale_loss(g_loss, g_optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(g_optimizer)  # the last step of the iteration updates the loss scale
        d_log.add(d_loss.detach())
        g_log.add(g_loss.detach())

    print("discriminator:", end=" ")
    d_log.end()
    print("generator:    ", end=" ")
    g_log.end()


def judged(discriminator: nn.Module, images: torch.Tensor, wanted: float) -> torch.Tensor:
    """Return the discriminator's loss on images whose target is ``wanted``."""
    logits = discriminator(images)
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, wanted))


def make_generator(width: int) -> nn.Module:
    """Return noise (n, 64, 1, 1) → images (n, 1, 32, 32)."""
    return nn.Sequential(
        *_up(NOISE, 4 * width, stride=1, padding=0),
        *_up(4 * width, 2 * width),
        *_up(2 * width, width),
        nn.ConvTranspose2d(width, 1, 4, 2, 1),
        nn.Tanh(),
    )


def _up(inputs: int, outputs: int, stride: int = 2, padding: int = 1) -> list[nn.Module]:
    convolution = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


def make_discriminator(width: int) -> nn.Module:
    """Return images (n, 1, 32, 32) → logits (n, 1, 1, 1)."""
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        *_down(width, 2 * width),
        *_down(2 * width, 4 * width),
        nn.Conv2d(4 * width, 1, 4),
    )


def _down(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]


if __name__ == "__main__":
    run(main)
