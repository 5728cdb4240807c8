"""Models of many shapes in ``DistributedDataParallel`` train as one process does with the whole batch, in float64.

Two processes joined by gloo; each shape trains eager and through ``amp.compile``, plain, and in windows with clipping
and a loss scale.
"""

import warnings

import numpy as np
import pytest
import torch
from loops import session
from ranks import checked, run_ranks
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import unifiedamp as ua

STEPS, RANKS = 3, 2
SCALE = ua.DynamicLossScale(initial_scale=64.0, growth_interval=2)
SETTINGS = {"plain": {}, "windows": {"window": 2, "clip": 0.05, "loss_scale": SCALE}}


class Tied(nn.Module):
    """An embedding whose weight is the last layer's too."""

    def __init__(self):
        super().__init__()
        self.embedding, self.inner = nn.Embedding(11, 6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 11, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, x):
        return self.last(torch.tanh(self.inner(self.embedding(x[:, 0].abs().long() % 11))))


class Branched(nn.Module):
    """A layer that no batch uses, or that batches use by their values."""

    def __init__(self, ever):
        super().__init__()
        self.first, self.branch, self.last, self.ever = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3), ever

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        used = self.ever and float(x.detach().sum()) > 0
        return self.last(hidden + self.branch(hidden) if used else hidden)


class Buffered(nn.Module):
    """A buffer that each forward pass changes."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x):
        with torch.no_grad():
            self.shift.mul_(0.9)
        return self.last(torch.tanh(self.first(x)) + self.shift)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.last = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))

    def forward(self, x):
        return (self.first(x).to(self.last.dtype) @ self.last).abs()


class Recomputed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x):
        return self.last(checkpoint(self.inner, torch.tanh(self.first(x)), use_reentrant=self.reentrant))


def layers(*inner):
    return nn.Sequential(nn.Linear(8, 8), *inner, nn.Tanh(), nn.Linear(8, 3))


def frozen():
    model = layers(nn.Linear(8, 8))
    model[0].requires_grad_(False)
    return model


def image(norm):
    unflatten = nn.Unflatten(1, (2, 2, 2))
    convolutions = nn.Conv2d(2, 4, 2, padding=1), norm, nn.ReLU(), nn.Conv2d(4, 4, 2, groups=2)
    return nn.Sequential(unflatten, *convolutions, nn.Flatten(), nn.Linear(16, 3)).to(memory_format=torch.channels_last)


SHAPES = {
    "shared weights": (Tied, {}),
    "shared weights, static graph": (Tied, {"static_graph": True}),
    "a layer that is never used": (lambda: Branched(False), {"find_unused_parameters": True}),
    "a layer that some ranks use": (lambda: Branched(True), {"find_unused_parameters": True}),
    "buffers": (Buffered, {}),
    "frozen layers": (frozen, {"gradient_as_bucket_view": True}),
    "complex weights": (Complex, {}),
    "channels last": (lambda: image(nn.GroupNorm(2, 4)), {"gradient_as_bucket_view": True}),
    "batch norm": (lambda: image(nn.BatchNorm2d(4)), {}),
    "recomputation": (lambda: Recomputed(False), {}),
    "recomputation, static graph": (lambda: Recomputed(True), {"static_graph": True}),
    "small buckets": (lambda: layers(nn.LayerNorm(8)), {"bucket_cap_mb": 1e-5}),
}


def made(shape):
    torch.manual_seed(3)
    return SHAPES[shape][0]()


def batches(window):
    """Micro-batch → rank → inputs and classes."""
    generator = torch.Generator().manual_seed(7)
    return [
        [(torch.randn(6, 8, generator=generator), torch.randint(0, 3, (6,), generator=generator)) for _ in range(RANKS)]
        for _ in range(STEPS * window)
    ]


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def trained(rank, shape, mode, window=1, clip=None, loss_scale=None):
    amp = session(compile=mode, accumulate_steps=window, loss_scale=loss_scale)
    wrapped = nn.parallel.DistributedDataParallel(made(shape), **SHAPES[shape][1])
    model, optimizer = amp.prepare(wrapped, optimizer_of(wrapped))

    def step(x, y):
        amp.backward(lambda: cross_entropy(model(x), y), optimizer)
        if clip is not None:
            amp.clip_grad_norm(optimizer, clip)
        amp.step(optimizer)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ua.CompileWarning)  # steps of several processes on CPUs run as they are written
        step = amp.compile(step)
    for ranks in batches(window):
        step(*ranks[rank])
    assert amp.skipped_steps == 0
    amp.close()
    return {name: param.detach().numpy() for name, param in wrapped.module.named_parameters()}


def every_shape(rank):
    return {
        (shape, setting, mode): trained(rank, shape, mode, **SETTINGS[setting])
        for shape in SHAPES
        for setting in SETTINGS
        for mode in ("off", "default", "max")
    }


def alone(shape, window=1, clip=None, **_):
    """One process in float64, torch alone; batch norm and buffers see each rank's part by itself, the first one's are
    kept.
    """
    model = made(shape)
    for module in model.modules():
        for param in module.parameters(recurse=False):
            param.data = param.data.to(torch.complex128 if param.is_complex() else torch.float64)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.double() if buffer.is_floating_point() else buffer)
    optimizer, micro_batches = optimizer_of(model), batches(window)
    for start in range(0, len(micro_batches), window):
        optimizer.zero_grad()
        for ranks in micro_batches[start : start + window]:
            before, after = [each.clone() for each in model.buffers()], []
            for x, y in ranks:
                _set(model.buffers(), before)
                (cross_entropy(model(x.double()), y) / (RANKS * window)).backward()
                after = after or [each.clone() for each in model.buffers()]
            _set(model.buffers(), after)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {name: param.detach().numpy() for name, param in model.named_parameters()}


def _set(buffers, values):
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)


@pytest.fixture(scope="module")
def ranks():
    return checked(run_ranks(every_shape))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_two_ranks_train_as_one_process(ranks, shape, setting):
    expected = alone(shape, **SETTINGS[setting])
    for mode in ("off", "default", "max"):
        first, second = (rank[shape, setting, mode] for rank in ranks)
        for name, values in expected.items():
            np.testing.assert_allclose(first[name], values, rtol=1e-4, atol=1e-5, err_msg=f"{mode}: {name}")
            np.testing.assert_array_equal(first[name], second[name], err_msg=f"{mode}: {name} differs between ranks")
