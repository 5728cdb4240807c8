"""Small models whose gradients are chosen by the data, and the same run in each trainer's own loop."""

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import unifiedamp as ua

DISTRIBUTIONS = {
    "lightning": ("lightning",),
    "pytorch_lightning": ("pytorch_lightning",),
    "fabric": ("lightning",),
    "accelerate": ("accelerate",),
    "transformers": ("transformers", "accelerate"),
}
HOSTS = [name for name, needs in DISTRIBUTIONS.items() if all(importlib.util.find_spec(need) for need in needs)]


class Probe(torch.nn.Module):
    """One weight, 1 at first; the gradient of its loss is the batch."""

    def __init__(self, start: float = 1.0, size: int = 1) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((size,), start))

    def forward(self, x):
        return (self.weight * x).sum()


@dataclass
class Run:
    """What a run is made of, and what it showed.

    Attributes:
        gradients: of each step, those of its micro-batches: numbers, or tuples with one for each element of the weight.
        accumulate: micro-batches per step.
        clip: the trainer's clipping, by "norm" or "value".
        schedule: gamma of an exponential schedule, stepped after each step.
        seen: of each step, what ``look`` returned after it.
        prepare: given the session, before the first step.
    """

    session: Any
    gradients: list
    lr: float = 0.125
    accumulate: int = 1
    clip: tuple[str, float] | None = None
    schedule: float | None = None
    optimizer: Callable[..., Any] = torch.optim.SGD
    model: Any = None
    prepare: Callable[[ua.Amp], None] | None = None
    settings: dict = field(default_factory=dict)
    seen: list = field(default_factory=list)
    amp: Any = None
    made: Any = None
    host: Any = None
    scheduler: Any = None

    def batches(self):
        return [torch.tensor(each).reshape(-1).float() for each in self.gradients]

    def make_model(self):
        self.model = self.model or Probe(size=self.batches()[0].numel())
        return self.model

    def make_optimizer(self):
        self.made = self.optimizer(self.model.parameters(), lr=self.lr)
        return self.made

    def make_scheduler(self, optimizer):
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.schedule)
        return self.scheduler

    def begin(self, amp):
        if self.amp is None:
            self.amp = amp
            if self.prepare is not None:
                self.prepare(amp)

    def look(self):
        state = self.amp.state_dict()["state"]
        self.seen.append(
            {
                "weights": [float(value) for value in self.model.weight.detach().float()],
                "scale_after": self.amp.loss_scale,
                "lr": self.made.param_groups[0]["lr"],
                **{key: state[key] for key in ("good_steps", "bad_steps", "applied_steps", "skipped_steps")},
            }
        )

    def column(self, key):
        return [each[key] for each in self.seen]


def run(host: str, what: Run) -> Run:
    """Train in the host's own loop."""
    RUNNERS[host](what)
    return what


def loader(batches):
    return torch.utils.data.DataLoader(batches, batch_size=None, shuffle=False)


# -- Lightning's Trainer -----------------------------------------------------------------------------------------------


def module_of(pl, what):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = what.make_model()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            return self(batch)

        def configure_optimizers(self):
            optimizer = what.make_optimizer()
            if what.schedule is None:
                return optimizer
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": what.make_scheduler(optimizer), "interval": "step"},
            }

        def on_fit_start(self):
            what.begin(self.trainer.precision_plugin.amp)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if (batch_idx + 1) % what.accumulate == 0:
                what.look()

    return Module()


def quiet_trainer(pl, plugin, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    defaults = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "enable_checkpointing": False}
    return pl.Trainer(plugins=[plugin] if plugin is not None else None, **{**quiet, **defaults, **options})


def lightning_of(name):
    import importlib

    pl = importlib.import_module("lightning.pytorch" if name == "lightning" else name)
    return pl, importlib.import_module(f"unifiedamp.integrations.{name}").AmpPrecision


def lightning_runner(name):
    def train(what):
        pl, plugin = lightning_of(name)
        options = {"accumulate_grad_batches": what.accumulate}
        if what.clip is not None:
            options |= {"gradient_clip_algorithm": what.clip[0], "gradient_clip_val": what.clip[1]}
        what.host = trainer = quiet_trainer(pl, plugin(what.session, **what.settings), **options)
        trainer.fit(module_of(pl, what), loader(what.batches()))

    return train


# -- Fabric ------------------------------------------------------------------------------------------------------------


def run_fabric(what):
    from lightning.fabric import Fabric

    from unifiedamp.integrations.fabric import AmpPrecision

    what.host = plugin = AmpPrecision(what.session, **what.settings)
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[plugin])
    what.make_model()
    model, optimizer = fabric.setup(what.model, what.make_optimizer())
    if what.prepare is not None:
        plugin.add_optimizers(optimizer)
    scheduler = plugin.hold(what.make_scheduler(what.made)) if what.schedule is not None else None
    for number, x in enumerate(what.batches()):
        last = (number + 1) % what.accumulate == 0
        loss = model(x) / what.accumulate
        what.begin(plugin.amp)
        fabric.backward(loss)
        if not last:
            continue
        if what.clip is not None:
            kind, limit = what.clip
            fabric.clip_gradients(model, optimizer, **{"max_norm" if kind == "norm" else "clip_val": limit})
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        what.look()


# -- Accelerate --------------------------------------------------------------------------------------------------------


def run_accelerate(what):
    from unifiedamp.integrations.accelerate import AmpAccelerator

    what.host = accelerator = AmpAccelerator(
        what.session, cpu=True, gradient_accumulation_steps=what.accumulate, **what.settings
    )
    what.make_model()
    what.make_optimizer()
    given = [what.model, what.made]
    if what.schedule is not None:
        given.append(what.make_scheduler(what.made))
    model, optimizer, *scheduler = accelerator.prepare(*given)
    what.begin(accelerator.amp)
    for x in what.batches():
        with accelerator.accumulate(model):
            accelerator.backward(model(x))
            if accelerator.sync_gradients and what.clip is not None:
                clip = accelerator.clip_grad_norm_ if what.clip[0] == "norm" else accelerator.clip_grad_value_
                clip(model.parameters(), what.clip[1])
            optimizer.step()
            for each in scheduler:
                each.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            what.look()


# -- Hugging Face's Trainer --------------------------------------------------------------------------------------------


class Outputs(torch.nn.Module):
    """A model as the Trainer wants it: named inputs, a loss by name."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    @property
    def weight(self):
        return self.inner.weight

    def forward(self, x):
        return {"loss": self.inner(x)}

    def zero_grad(self, *args, **kwargs):
        self.inner.zero_grad(*args, **kwargs)


def trainer_arguments(**options):
    from transformers import TrainingArguments

    quiet = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no"}
    defaults = {"output_dir": "out", "use_cpu": True, "per_device_train_batch_size": 1, "max_grad_norm": 0.0}
    return TrainingArguments(**{**quiet, **defaults, "num_train_epochs": 1, **options})


def one_by_one(rows):
    (row,) = rows
    return row


class InOrder:
    """Data sets are trained in order; put before ``Trainer``."""

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def run_transformers(what):
    import transformers

    from unifiedamp.integrations.transformers import attach

    class Sequential(InOrder, transformers.Trainer):
        def create_optimizer(self, *args, **kwargs):
            self.optimizer = self.optimizer or what.make_optimizer()
            return self.optimizer

        def create_scheduler(self, num_training_steps, optimizer=None):
            if self.lr_scheduler is None:
                gamma = 1.0 if what.schedule is None else what.schedule
                what.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma)
                self.lr_scheduler = what.scheduler
            return self.lr_scheduler

    class Look(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            what.begin(trainer.accelerator.amp)

        def on_step_end(self, args, state, control, **kwargs):
            what.look()

    if what.clip is not None and what.clip[0] != "norm":
        raise NotImplementedError("the Trainer clips by norm alone")
    limit = 0.0 if what.clip is None else what.clip[1]
    what.make_model()
    args = trainer_arguments(gradient_accumulation_steps=what.accumulate, max_grad_norm=limit)
    data = [{"x": x} for x in what.batches()]
    what.host = trainer = Sequential(
        Outputs(what.model), args, train_dataset=data, data_collator=one_by_one, callbacks=[Look()]
    )
    attach(trainer, what.session, **what.settings)
    trainer.train()


RUNNERS = {
    "lightning": lightning_runner("lightning"),
    "pytorch_lightning": lightning_runner("pytorch_lightning"),
    "fabric": run_fabric,
    "accelerate": run_accelerate,
    "transformers": run_transformers,
}


def session(policy="mixed_float16", **settings):
    return ua.Amp("torch", policy, device="cpu", **settings)


__all__ = ["HOSTS", "Probe", "Run", "math", "replace", "run", "session"]
