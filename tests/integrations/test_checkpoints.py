"""The trainers' own checkpoints: a resumed run equals an uninterrupted one; states move to and from native scalers."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import probes
from test_against_native import adamw, data, network, weights

import unifiedamp as ua
from unifiedamp.integrations import state

GROWS = ua.DynamicLossScale(initial_scale=64.0, growth_interval=2)
POLICIES = {
    "mixed_float16": {"loss_scale": GROWS},
    "float16": {"loss_scale": GROWS, "master_weights": True},
    "bfloat16": {"master_weights": True},
}


def loss_of(net, batch):
    x, y = batch
    return torch.nn.functional.cross_entropy(net(x), y)


def with_fabric(net, amp, path, begin, end, save):
    from lightning.fabric import Fabric

    from unifiedamp.integrations.fabric import AmpPrecision

    plugin = AmpPrecision(amp)
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[plugin])
    model, optimizer = fabric.setup(net, adamw(net))
    plugin.add_optimizers(optimizer)
    state = {"model": model, "optimizer": optimizer, "amp": plugin}
    if begin:
        fabric.load(path, state)
    for batch in data()[begin:end]:
        fabric.backward(loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    if save:
        fabric.save(path, state)


def with_accelerate(net, amp, path, begin, end, save):
    from unifiedamp.integrations.accelerate import AmpAccelerator

    accelerator = AmpAccelerator(amp)
    model, optimizer = accelerator.prepare(net, adamw(net))
    if begin:
        accelerator.load_state(path)
    for batch in data()[begin:end]:
        accelerator.backward(loss_of(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    if save:
        accelerator.save_state(path)


class Epochs(torch.utils.data.IterableDataset):
    """Three batches an epoch."""

    def __init__(self, begin):
        self.begin = begin

    def __iter__(self):
        self.begin += 3
        return iter(data()[self.begin - 3 : self.begin])


def lightning_module(pl, net):
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            return loss_of(self, batch)

        def configure_optimizers(self):
            return adamw(self)

    return Module()


def with_lightning(net, amp, path, begin, end, save):
    import lightning.pytorch as pl

    from unifiedamp.integrations.lightning import AmpPrecision

    trainer = probes.quiet_trainer(pl, AmpPrecision(amp) if amp else None, max_epochs=end // 3)
    epochs = probes.loader(Epochs(begin))
    trainer.fit(lightning_module(pl, net), epochs, ckpt_path=path if begin else None)
    if save:
        trainer.save_checkpoint(path)


def with_transformers(net, amp, path, begin, end, save):
    import transformers
    from test_against_native import Classifier

    from unifiedamp.integrations.transformers import attach

    class Sequential(probes.InOrder, transformers.Trainer):
        pass

    args = probes.trainer_arguments(
        max_steps=end, output_dir=str(path), save_strategy="steps", save_steps=end, lr_scheduler_type="constant"
    )
    rows = [{"x": x, "labels": y} for x, y in data()]
    model = Classifier(net)
    trainer = Sequential(
        model, args, train_dataset=rows, data_collator=probes.one_by_one,
        optimizers=(adamw(model), None),
    )  # fmt: skip
    attach(trainer, amp)
    trainer.train(resume_from_checkpoint=f"{path}/checkpoint-{begin}" if begin else None)


RUN = {
    "lightning": with_lightning,
    "fabric": with_fabric,
    "accelerate": with_accelerate,
    "transformers": with_transformers,
}


def masters(amp, net):
    if not amp.backend.spec.master_weights:
        return weights(net)
    return np.concatenate([value.ravel() for value in amp.master_weights(net).values()])


@pytest.mark.parametrize("host", [name for name in RUN if name in probes.HOSTS])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_resumed_run_equals_an_uninterrupted_one(host, policy, tmp_path):
    whole, first, second = network(), network(), network()
    sessions = [probes.session(policy, **POLICIES[policy]) for _ in range(3)]
    path = tmp_path / "checkpoint"
    RUN[host](whole, sessions[0], tmp_path / "other", 0, 6, False)
    RUN[host](first, sessions[1], path, 0, 3, True)
    RUN[host](second, sessions[2], path, 3, 6, False)
    np.testing.assert_array_equal(masters(sessions[2], second), masters(sessions[0], whole))
    assert np.abs(weights(second) - weights(first)).max() > 1e-3
    assert sessions[2].state_dict()["state"] == sessions[0].state_dict()["state"]
    assert sessions[2].applied_steps == 6


def test_a_state_moves_to_a_native_scaler_and_back():
    amp = probes.session(loss_scale=GROWS)
    amp.load_state_dict({**amp.state_dict(), "state": {"scale": 256.0, "good_steps": 1, "bad_steps": 0,
                                                       "applied_steps": 5, "skipped_steps": 2}})  # fmt: skip
    saved = state.dump(amp, [])
    native = torch.amp.GradScaler("cpu")
    native.load_state_dict(copy.deepcopy(saved))
    assert native.get_scale() == 256.0
    assert native.state_dict()["_growth_tracker"] == 1
    other = probes.session(loss_scale=GROWS)
    state.load(other, [], native.state_dict())
    assert (other.loss_scale, other.state_dict()["state"]["good_steps"]) == (256.0, 1)
    state.load(other, [], saved)
    assert (other.applied_steps, other.skipped_steps) == (5, 2)


def test_lightnings_own_checkpoint_is_read_and_written(tmp_path):
    """As between ``precision="16-mixed"`` on a GPU and a session: its plugin's place in the file is filled and read."""
    pytest.importorskip("lightning")
    from lightning.pytorch.plugins.precision import MixedPrecision

    ours, path = probes.session(loss_scale=GROWS), tmp_path / "ours.ckpt"
    with_lightning(network(), ours, path, 0, 3, True)
    saved = torch.load(path, weights_only=True)
    native = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    native.load_state_dict(saved["MixedPrecision"])
    assert native.scaler.get_scale() == ours.loss_scale == 128.0
    del saved["AmpPrecision"]
    saved["MixedPrecision"] = {**native.state_dict(), "scale": 512.0}
    torch.save(saved, path)
    again = probes.session(loss_scale=probes.replace(GROWS, initial_scale=4.0))
    with_lightning(network(), again, path, 3, 6, False)
    assert again.loss_scale == 512.0 * 2**2  # one good step was counted, and three follow


def test_a_checkpoint_without_a_scale_says_so(tmp_path):
    pytest.importorskip("lightning")
    path = tmp_path / "plain.ckpt"
    with_lightning(network(), None, path, 0, 3, True)
    with pytest.warns(ua.errors.StateWarning, match="no loss scale: the run goes on from 64"):
        with_lightning(network(), probes.session(loss_scale=GROWS), path, 3, 6, False)


@pytest.mark.skipif("transformers" not in probes.HOSTS, reason="transformers is not installed")
def test_hugging_faces_trainer_says_so_too(tmp_path):
    with_transformers(network(), probes.session("mixed_float16", loss_scale=GROWS), tmp_path, 0, 3, True)
    (tmp_path / "checkpoint-3" / "scaler.pt").unlink()
    with pytest.warns(ua.errors.StateWarning, match="no loss scale: the run goes on from 64"):
        with_transformers(network(), probes.session("mixed_float16", loss_scale=GROWS), tmp_path, 3, 6, False)
