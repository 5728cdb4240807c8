"""Lightning's Trainer beyond one fit: errors in hooks, None losses, other loops, several fits, processes."""

import time
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")

import lightning.pytorch as pl
import probes

import unifiedamp as ua
from unifiedamp.integrations.lightning import AmpPrecision


class Module(pl.LightningModule):
    def __init__(self, fails_at=(), none_at=(), keys=False):
        super().__init__()
        self.net = probes.Probe()
        self.fails_at, self.none_at, self.keys = fails_at, none_at, keys
        self.seen = []

    def training_step(self, batch, batch_idx):
        if batch_idx in self.none_at:
            return None
        loss = self.net(batch)
        return {"loss": loss, "other": 1} if self.keys else loss

    def on_before_optimizer_step(self, optimizer):
        self.seen.append(None if self.net.weight.grad is None else float(self.net.weight.grad))

    def on_after_backward(self):
        if self.trainer.global_step in self.fails_at:
            raise RuntimeError("mine")

    def validation_step(self, batch, batch_idx):
        self.log("low", float(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float16))

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return torch.mm(torch.ones(2, 2), torch.ones(2, 2))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.125)


def batches(values):
    return probes.loader([torch.tensor([value]) for value in values])


def test_hooks_see_true_gradients_and_steps_of_none_are_left_out():
    module, plugin = Module(none_at=(1, 4), keys=True), AmpPrecision(probes.session(loss_scale=256.0))
    trainer = probes.quiet_trainer(pl, plugin, accumulate_grad_batches=2, gradient_clip_val=100.0)
    trainer.fit(module, batches([1.0, 9.0, 2.0, 3.0, 9.0, 4.0]))
    # The first window's last loss was None, so it is left out, as with precision="16-mixed"; of the third, half counts.
    assert module.seen == [None, 2.5, 2.0]
    assert float(module.net.weight.detach()) == 1 - 0.125 * (2.5 + 2.0)
    assert plugin.amp.applied_steps == 2


@pytest.mark.parametrize("settings", [{"policy": "float32"}, {"loss_scale": 256.0}])
def test_averaging_weights_applies_no_step_without_a_backward_pass(settings):
    """After the last epoch, Lightning runs another one for batch norms alone, at whose end it would step once more."""

    class Normed(Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(1)

        def training_step(self, batch, batch_idx):
            self.norm(torch.tensor([[0.0], [1.0]]))
            return super().training_step(batch, batch_idx)

        def on_train_batch_start(self, batch, batch_idx):
            self.weight = self.net.weight.item()

    module, plugin = Normed(), AmpPrecision(probes.session(**settings))
    averaging = pl.callbacks.StochasticWeightAveraging(0.125, swa_epoch_start=1, annealing_epochs=1)
    probes.quiet_trainer(pl, plugin, max_epochs=3, callbacks=[averaging]).fit(module, batches([1.0, 2.0]))
    assert plugin.amp.applied_steps == 6
    assert module.net.weight.item() == module.weight


def test_other_loops_run_under_the_policy():
    module, plugin = Module(), AmpPrecision("mixed_float16")
    trainer = probes.quiet_trainer(pl, plugin)
    (found,) = trainer.validate(module, batches([1.0]), verbose=False)
    assert found == {"low": 1.0}
    (found,) = trainer.test(module, batches([1.0]), verbose=False)
    assert found == {"low": 1.0}
    (made,) = trainer.predict(module, batches([1.0]))
    assert made.dtype is torch.float16


def test_a_second_fit_goes_on_with_new_optimizers():
    module, plugin = Module(), AmpPrecision(probes.session(loss_scale=ua.DynamicLossScale(8.0, growth_interval=3)))
    for _ in range(2):
        probes.quiet_trainer(pl, plugin).fit(module, batches([1.0, 1.0, float("inf"), 1.0]))
    assert float(module.net.weight.detach()) == 1 - 6 * 0.125
    assert plugin.amp.state_dict()["state"] == {
        "scale": 4.0, "good_steps": 1, "bad_steps": 0, "applied_steps": 6, "skipped_steps": 2
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["automatic", "manual"])
def test_optimizers_that_are_made_during_a_run(kind):
    """With a schedule, which is held on the skipped step."""

    class Anew(Module):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = kind == "automatic"

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.125 * (1 + self.current_epoch))
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        def on_train_epoch_start(self):
            if self.current_epoch:
                self.trainer.strategy.setup_optimizers(self.trainer)

        def training_step(self, batch, batch_idx):
            if self.automatic_optimization:
                return super().training_step(batch, batch_idx)
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.net(batch))
            optimizer.step()
            self.lr_schedulers().step()
            return None

    module, plugin = Anew(), AmpPrecision(probes.session(loss_scale=ua.DynamicLossScale(64.0)))
    probes.quiet_trainer(pl, plugin, max_epochs=2).fit(module, batches([1.0, float("inf"), 1.0]))
    assert float(module.net.weight.detach()) == 1 - 0.125 * 1.5 - 0.25 * 1.5
    assert plugin.amp.state_dict()["state"]["applied_steps"] == 4


def test_optimizers_that_are_made_inside_a_window_get_what_it_has_accumulated():
    class Anew(Module):
        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 1:
                self.trainer.strategy.setup_optimizers(self.trainer)

    module, plugin = Anew(), AmpPrecision(probes.session(loss_scale=64.0))
    probes.quiet_trainer(pl, plugin, accumulate_grad_batches=2).fit(module, batches([1.0, 3.0]))
    assert float(module.net.weight.detach()) == 1 - 0.125 * 2


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_a_run_that_failed_starts_anew(error):
    module, plugin = Module(), AmpPrecision(probes.session(loss_scale=64.0))

    class Fails(pl.Callback):
        def on_after_backward(self, trainer, module):
            if trainer.global_step == 1:
                raise error

    with pytest.raises((RuntimeError, SystemExit), match=None):
        trainer = probes.quiet_trainer(pl, plugin, callbacks=[Fails()])
        trainer.fit(module, batches([1.0, 1.0, 1.0]))
    assert float(module.net.weight.detach()) == 0.875
    probes.quiet_trainer(pl, plugin).fit(module, batches([2.0]))
    assert float(module.net.weight.detach()) == 0.875 - 0.25
    assert plugin.amp.applied_steps == 2


def test_an_own_backward_is_called_with_the_scaled_loss():
    class Own(Module):
        def backward(self, loss, *args, **kwargs):
            losses.append(float(loss.detach()))
            loss.backward(*args, **kwargs)

    losses, module = [], Own()
    probes.quiet_trainer(pl, AmpPrecision(probes.session(loss_scale=64.0))).fit(module, batches([1.0, 2.0]))
    assert losses == [64.0, 64.0 * 2 * 0.875]
    assert float(module.net.weight.detach()) == 1 - 0.125 * 3


def test_lightnings_names_of_policies():
    names = {"float32": "32-true", "mixed_float16": "16-mixed", "mixed_bfloat16": "bf16-mixed"}
    names |= {"float16": "16-true", "bfloat16": "bf16-true"}
    for policy, name in names.items():
        trainer = probes.quiet_trainer(pl, AmpPrecision(policy))
        assert trainer.precision == name


def test_tensors_made_in_a_step_have_the_parameters_dtype():
    """As with precision="bf16-true"."""

    class Makes(Module):
        def training_step(self, batch, batch_idx):
            dtypes.extend([batch.dtype, torch.ones(1).dtype])
            return self.net(batch)

    dtypes = []
    probes.quiet_trainer(pl, AmpPrecision(probes.session("bfloat16"))).fit(Makes(), batches([1.0]))
    assert dtypes == [torch.bfloat16] * 2
    assert torch.get_default_dtype() is torch.float32


def test_a_scheduler_is_copied_and_saved_as_its_own_class(tmp_path):
    class Scheduled(Module):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, Halves())
            return [optimizer], [{"scheduler": self.scheduler, "interval": "step"}]

    module, plugin = Scheduled(), AmpPrecision(probes.session(loss_scale=4.0))
    trainer = probes.quiet_trainer(pl, plugin)
    trainer.fit(module, batches([1.0, float("inf"), 1.0]))
    assert module.scheduler.last_epoch == 2
    assert isinstance(module.scheduler, torch.optim.lr_scheduler.LambdaLR)
    trainer.save_checkpoint(tmp_path / "it.ckpt")
    import copy
    import pickle

    assert type(copy.deepcopy(module.scheduler)) is torch.optim.lr_scheduler.LambdaLR
    assert type(pickle.loads(pickle.dumps(module.scheduler))) is torch.optim.lr_scheduler.LambdaLR


class Halves:
    def __call__(self, step):
        return 0.5**step


class Sharded(torch.utils.data.IterableDataset):
    """A different batch for each process: inf on one alone, once."""

    def __len__(self):
        return 4

    def __iter__(self):
        rank = torch.distributed.get_rank()
        rows = [(1.0, 3.0), (float("inf"), 1.0), (2.0, 4.0), (1.0, 1.0)]
        return iter([torch.tensor([row[rank]]) for row in rows])


class Saves(Module):
    def on_fit_end(self):
        if self.trainer.is_global_zero:
            amp = self.trainer.precision_plugin.amp
            torch.save({"weight": self.net.weight.detach(), "state": amp.state_dict()["state"]}, "end.pt")

    def teardown(self, stage):
        """Wait until gloo's threads have freed their tensors: torch 2.13 aborts a process that ends before."""
        last = torch.zeros(1)
        freed = weakref.ref(last)
        torch.distributed.all_reduce(last)
        del last
        deadline = time.monotonic() + 30
        while freed() is not None and time.monotonic() < deadline:
            time.sleep(0.01)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_processes_decide_alike(accumulate):
    plugin = AmpPrecision("mixed_float16", loss_scale=ua.DynamicLossScale(8.0, growth_interval=3))
    trainer = probes.quiet_trainer(
        pl, plugin, strategy="ddp_spawn", devices=2, accumulate_grad_batches=accumulate, use_distributed_sampler=False
    )
    trainer.fit(Saves(), torch.utils.data.DataLoader(Sharded(), batch_size=None))
    end = torch.load("end.pt", weights_only=True)
    means = [2.0, None, 3.0, 1.0] if accumulate == 1 else [None, 2.0]
    applied = [mean for mean in means if mean is not None]
    np.testing.assert_allclose(float(end["weight"]), 1 - 0.125 * sum(applied), rtol=1e-6)
    assert (end["state"]["applied_steps"], end["state"]["skipped_steps"]) == (len(applied), 1)
    assert end["state"]["scale"] == 4.0
