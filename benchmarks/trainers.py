"""A session inside trainers on torch, each compared with the trainer's own mixed precision.

`python benchmarks/trainers.py` trains one model in Lightning's Trainer, Fabric, Accelerate and Hugging Face's Trainer,
by unifiedamp and by the trainer's own mixed precision, alternating in one process. It prints a table and writes
`benchmarks/results/trainers-torch.json` (`-gpu` on a GPU). Trainers that are not installed are reported.
"""

from __future__ import annotations

import gc
import logging
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cli
from race import Limits, Race, Standing, failure, warm_up
from recipes import RECIPES, Parts, find
from timing import Loop, hardware, write_race

import unifiedamp as ua

CPU_RECIPES = ("conv 28x28",)
GPU_RECIPES = ("ResNet-50 28", "GPT-2 small 1024")
NATIVE, OURS = "its own", "unifiedamp"


class Stopped(Exception):
    """Ends a training, raised where the trainer asks for its next batch."""


class Stepped:
    """A trainer that owns its loop, run in a thread: each call lets it train on one more batch.

    Args:
        batch: what each batch is.

    Attributes:
        loss: the last one that the trainer computed; set by its model.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._ended = False
        self.loss: Any = None

    def start(self, train: Callable[[Iterator[Any]], Any]) -> None:
        """Start ``train``, which trains on the batches it is given; return at the first loss."""
        self._thread = threading.Thread(target=self._run, args=(train,), daemon=True)
        self._thread.start()
        self._wait()
        while self.loss is None:  # trainers read a batch ahead
            self()

    def _run(self, train: Callable[[Iterator[Any]], Any]) -> None:
        try:
            train(self._batches())
        except Stopped:
            pass
        except BaseException as error:
            self._error = error
        self._ended = True
        self._done.release()

    def _batches(self) -> Iterator[Any]:
        while True:
            self._done.release()
            self._go.acquire()
            if self._ended:
                raise Stopped  # at the end of its data Transformers would count through the rest of its steps
            yield self._batch

    def _wait(self) -> None:
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def __call__(self) -> Any:
        """Train on one batch; return the last loss that the trainer computed."""
        if self._ended:
            raise RuntimeError("the trainer has ended")
        self._go.release()
        self._wait()
        return self.loss

    def stop(self) -> None:
        """End the training."""
        self._ended = True
        self._go.release()
        self._thread.join(60)


class Batches:
    """Makes a data set of an iterator, which torch's loader takes as it is."""

    def __new__(cls, batches: Iterator[Any]) -> Any:
        """Return the data set."""
        from torch.utils.data import IterableDataset

        class Stream(IterableDataset):  # type: ignore[type-arg]
            def __iter__(self) -> Iterator[Any]:
                return batches

        return Stream()


def session(parts: Parts, by: Any) -> ua.Amp:
    return ua.Amp("torch", by.low(), loss_scale=parts.recipe.loss_scale(by.low()), device=by.DEVICE)


def scaler_of(parts: Parts, by: Any) -> Any:
    """Return the native scaler with the recipe's first scale; None under bfloat16."""
    from torch.amp import GradScaler

    return GradScaler(by.DEVICE, init_scale=parts.recipe.first_scale) if by.low() == "mixed_float16" else None


def made(parts: Parts, by: Any) -> tuple[Any, Any]:
    with by.scope():
        model = parts.model()
        return model, parts.optimizer(model)


def lightning(parts: Parts, by: Any, ours: bool) -> Stepped:
    """Lightning's Trainer."""
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.precision import MixedPrecision
    from torch.utils.data import DataLoader

    from unifiedamp.integrations.lightning import AmpPrecision

    half = by.low() == "mixed_float16"
    net, optimizer = made(parts, by)
    stepped = Stepped(batch_of(parts, by))

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            stepped.loss = loss = parts.loss_fn(self.net(batch[0]), batch[1])
            return loss

        def configure_optimizers(self) -> Any:
            return optimizer

    native = MixedPrecision("16-mixed" if half else "bf16-mixed", by.DEVICE, scaler_of(parts, by))
    trainer = pl.Trainer(
        accelerator=by.DEVICE, devices=1, max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
        plugins=[AmpPrecision(session(parts, by)) if ours else native],
    )  # fmt: skip

    def train(batches: Iterator[Any]) -> None:
        trainer.fit(Module(), DataLoader(Batches(batches), batch_size=None))

    stepped.start(train)
    return stepped


def batch_of(parts: Parts, by: Any) -> tuple[Any, Any]:
    return by.tensor(parts.images), by.tensor(parts.labels)


def fabric(parts: Parts, by: Any, ours: bool) -> Callable[[], Any]:
    """Lightning Fabric."""
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    from unifiedamp.integrations.fabric import AmpPrecision

    half = by.low() == "mixed_float16"
    native = MixedPrecision("16-mixed" if half else "bf16-mixed", by.DEVICE, scaler_of(parts, by))
    plugin = AmpPrecision(session(parts, by)) if ours else native
    found = Fabric(accelerator=by.DEVICE, devices=1, plugins=[plugin])
    model, optimizer = found.setup(*made(parts, by))
    x, y = batch_of(parts, by)

    def step() -> Any:
        loss = parts.loss_fn(model(x), y)
        found.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def forget_precision() -> None:
    """Let another Accelerator of this process have another precision; those there are keep theirs."""
    from accelerate.state import AcceleratorState

    AcceleratorState._shared_state = type(AcceleratorState._shared_state)()


def accelerate(parts: Parts, by: Any, ours: bool) -> Callable[[], Any]:
    """Hugging Face Accelerate."""
    from accelerate import Accelerator
    from accelerate.utils import GradScalerKwargs

    from unifiedamp.integrations.accelerate import AmpAccelerator

    forget_precision()
    cpu = by.DEVICE == "cpu"
    if ours:
        accelerator = AmpAccelerator(session(parts, by), cpu=cpu)
    else:
        low = "fp16" if by.low() == "mixed_float16" else "bf16"
        scaler = GradScalerKwargs(init_scale=parts.recipe.first_scale)
        accelerator = Accelerator(mixed_precision=low, cpu=cpu, kwargs_handlers=[scaler])
    model, optimizer = accelerator.prepare(*made(parts, by))
    x, y = batch_of(parts, by)

    def step() -> Any:
        with accelerator.autocast():
            loss = parts.loss_fn(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def transformers(parts: Parts, by: Any, ours: bool) -> Stepped:
    """Hugging Face's Trainer."""
    import torch
    from transformers import Trainer, TrainingArguments

    from unifiedamp.integrations.transformers import attach

    forget_precision()
    net, optimizer = made(parts, by)
    stepped = Stepped(dict(zip(("x", "labels"), batch_of(parts, by), strict=True)))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            stepped.loss = loss = parts.loss_fn(self.net(x), labels)
            return {"loss": loss}

    low = {} if ours else {"fp16" if by.low() == "mixed_float16" else "bf16": True}
    args = TrainingArguments(
        Path(tempfile.gettempdir(), "benchmark"), use_cpu=by.DEVICE == "cpu", report_to=[], disable_tqdm=True,
        save_strategy="no", logging_strategy="no", per_device_train_batch_size=1, max_steps=10**9,
        dataloader_pin_memory=False, accelerator_config={"dispatch_batches": False}, **low,
    )  # fmt: skip

    def train(batches: Iterator[Any]) -> None:
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        trainer = Trainer(
            Model(), args, train_dataset=Batches(batches), data_collator=lambda rows: rows[0],
            optimizers=(optimizer, scheduler),
        )  # fmt: skip
        if ours:
            attach(trainer, session(parts, by))
        elif trainer.accelerator.scaler is not None:
            trainer.accelerator.scaler = scaler_of(parts, by)
        trainer.train()

    stepped.start(train)
    return stepped


TRAINERS: dict[str, Callable[[Parts, Any, bool], Callable[[], Any]]] = {
    "Lightning": lightning,
    "Fabric": fabric,
    "Accelerate": accelerate,
    "Transformers": transformers,
}


def measure(trainer: str, name: str, by: Any, options: Any, limits: Limits) -> Iterator[Standing]:
    """Yield the rows of one trainer and recipe."""
    by.begin()
    recipe = find(name, options.smoke)
    race = Race(recipe.unit, recipe.per_step, limits)
    stepped: list[Any] = []
    for key in (NATIVE, OURS):
        by.clear()
        labels = {"trainer": trainer, "recipe": name, "batch": str(recipe.batch), "by": key}
        try:
            step = TRAINERS[trainer](Parts("torch", recipe), by, key == OURS)
            stepped.append(step)
            ready = warm_up(Loop(step, by.finish, by.around), by.number)
            yield race.enter(labels, key, ready, stays=key == NATIVE)
        except ImportError as error:
            yield failure(labels, f"{error.name} is not installed")
        except Exception as error:
            yield failure(labels, error)
    for step in stepped:
        if isinstance(step, Stepped):
            step.stop()
    del stepped, race
    gc.collect()


def measure_all(backend: str, options: Any, path: Path) -> None:
    """Measure every requested trainer and recipe; write the results after each row."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    by = cli.native_of(backend)
    before = hardware(by.gpu())
    limits = Limits(options.pairs, options.seconds, cli.turn_seconds(by))
    title = f"{backend}: trainers, {by.low()}, {before['gpu']['name'] if by.gpu() else 'CPU'}"
    rows: list[Standing] = []
    for name in options.recipes or (GPU_RECIPES if by.gpu() else CPU_RECIPES):
        for trainer in options.trainers:
            for row in measure(trainer, name, by, options, limits):
                rows.append(row)
                write_race(path, title, [NATIVE], "time", before, rows)


if __name__ == "__main__":
    if not {"torch", "--measure", "-h", "--help"} & set(sys.argv[1:]):
        sys.argv.insert(1, "torch")
    parser = cli.parser(__doc__, 100, None, tuple(RECIPES))
    parser.add_argument("--trainers", nargs="+", default=tuple(TRAINERS), choices=tuple(TRAINERS))
    sys.exit(cli.run(parser, __file__, "trainers", measure_all))
