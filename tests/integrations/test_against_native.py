"""A small network trained by a session and by the trainer's own mixed precision, from the same seed."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import probes

POLICIES = {"float32": "32-true", "mixed_bfloat16": "bf16-mixed"}
STEPS = 6


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def data():
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(STEPS)
    ]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def weights(model):
    return np.concatenate([param.detach().float().numpy().ravel() for param in model.parameters()])


def with_lightning(name, net, policy, native):
    pl, plugin = probes.lightning_of(name)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, batch_idx):
            x, y = batch
            return torch.nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return adamw(self)

    options = {"precision": POLICIES[policy]} if native else {}
    ours = None if native else plugin(probes.session(policy))
    probes.quiet_trainer(pl, ours, gradient_clip_val=0.1, **options).fit(Module(), probes.loader(data()))


def with_fabric(name, net, policy, native):
    from lightning.fabric import Fabric

    from unifiedamp.integrations.fabric import AmpPrecision

    options = {"precision": POLICIES[policy]} if native else {"plugins": [AmpPrecision(probes.session(policy))]}
    fabric = Fabric(accelerator="cpu", devices=1, **options)
    model, optimizer = fabric.setup(net, adamw(net))
    for x, y in data():
        optimizer.zero_grad()
        fabric.backward(torch.nn.functional.cross_entropy(model(x), y))
        fabric.clip_gradients(model, optimizer, max_norm=0.1)
        optimizer.step()


def with_accelerate(name, net, policy, native):
    from accelerate import Accelerator

    from unifiedamp.integrations.accelerate import AmpAccelerator

    low = {"float32": "no", "mixed_bfloat16": "bf16"}[policy]
    accelerator = Accelerator(cpu=True, mixed_precision=low) if native else AmpAccelerator(probes.session(policy))
    model, optimizer = accelerator.prepare(net, adamw(net))
    for x, y in data():
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
        accelerator.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


class Classifier(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": torch.nn.functional.cross_entropy(out, labels), "logits": out}


def with_transformers(name, net, policy, native):
    import transformers

    from unifiedamp.integrations.transformers import attach

    class Sequential(probes.InOrder, transformers.Trainer):
        pass

    low = native and policy == "mixed_bfloat16"
    args = probes.trainer_arguments(bf16=low, max_grad_norm=0.1, learning_rate=0.05)
    rows = [{"x": x, "labels": y} for x, y in data()]
    model = Classifier(net)
    trainer = Sequential(
        model, args, train_dataset=rows, data_collator=probes.one_by_one, optimizers=(adamw(model), None)
    )
    if not native:
        attach(trainer, probes.session(policy))
    trainer.train()


TRAIN = {
    "lightning": with_lightning,
    "pytorch_lightning": with_lightning,
    "fabric": with_fabric,
    "accelerate": with_accelerate,
    "transformers": with_transformers,
}


@pytest.mark.parametrize("host", probes.HOSTS)
@pytest.mark.parametrize("policy", POLICIES)
def test_same_weights_as_the_trainers_own(host, policy):
    net = network()
    before, theirs = weights(net), copy.deepcopy(net)
    TRAIN[host](host, net, policy, native=False)
    if host in ("accelerate", "transformers"):
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)
    TRAIN[host](host, theirs, policy, native=True)
    assert np.abs(weights(net) - before).max() > 0.05
    np.testing.assert_allclose(weights(net), weights(theirs), rtol=0, atol=1e-6 if policy == "float32" else 2e-4)
