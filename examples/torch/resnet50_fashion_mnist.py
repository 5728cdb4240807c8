"""ResNet-50 on Fashion-MNIST, in float32 and mixed precision; the two runs differ only in the configuration."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import precision_recall_fscore_support

import unifiedamp as ua
from examples.common import Log, PolicyName, Smoke, batches, images, mixed_policy, run
from examples.data import Data
from examples.evaluation import predict
from examples.models import torch_models
from examples.models.torch_resnet import FULL, TINY, ResNet


def main(
    smoke: Smoke = False, policy: PolicyName = None, epochs: int = 5, batch_size: int = 256, out: Path = Path("runs")
) -> None:
    """Train twice and print the scores; plot the loss scale of the mixed run to resnet50_scale.png."""
    data = images("torch", smoke)
    compile = "off" if smoke else "default"
    configs: list[dict[str, Any]] = [
        {"backend": "torch", "compile": compile, "policy": "float32"},
        {"backend": "torch", "compile": compile, "policy": policy or mixed_policy("torch"), "loss_scale": "dynamic"},
    ]
    rows = []
    for config in configs:
        print(f"-- {config['policy']}")
        began = time.perf_counter()
        amp, model, log = train(config, data, *((TINY, 2, 32, 30) if smoke else (FULL, epochs, batch_size, None)))
        rows.append((config["policy"], time.perf_counter() - began, *scores(amp, model, data)))
    out.mkdir(parents=True, exist_ok=True)
    log.draw(out / "resnet50_scale.png")

    print(f"{'policy':<16} {'seconds':>8} {'accuracy':>9} {'precision':>9} {'recall':>9} {'F1':>9}")
    for name, seconds, *figures in rows:
        print(f"{name:<16} {seconds:>8.1f}", *(f"{figure:>9.4f}" for figure in figures))


def train(
    config: dict[str, Any], data: Data, size: Any, epochs: int, batch_size: int, steps: int | None
) -> tuple[ua.Amp, ResNet, Log]:
    """Train a new ResNet-50 with the configuration ``config``."""
    amp = ua.Amp.from_config(config)
    torch.manual_seed(0)
    with amp.scope():
        model = ResNet(*size, data.classes).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05 if steps else 0.01, momentum=0.9, fused=True)
    model, optimizer = amp.prepare(model, optimizer)

    @amp.compile
    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with amp.autocast():
            loss = torch.nn.functional.cross_entropy(model(x), y.long())
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        return loss.detach()

    log = Log(amp, every=10 if steps else 100)
    for x, y in batches(amp, data, batch_size, epochs, steps):
        log.add(train_step(x, y))
    log.end()
    return amp, model, log


def scores(amp: ua.Amp, model: ResNet, data: Data) -> tuple[float, ...]:
    """Return accuracy, precision, recall and F1 (macro averages) on the test images."""
    found = predict(amp, torch_models, model, data)
    precision, recall, f1, _ = precision_recall_fscore_support(
        data.test_labels, found, average="macro", zero_division=0
    )
    return float((found == data.test_labels).mean()), precision, recall, f1


if __name__ == "__main__":
    run(main)
