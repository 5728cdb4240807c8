"""What ``Tuning`` does to torch's models, optimizers and settings."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

import unifiedamp as ua
from unifiedamp.backend import Switches
from unifiedamp.errors import TuningWarning
from unifiedamp_torch.device import switches, tuning
from unifiedamp_torch.precision.autocast import Region

BATCH = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Block(nn.Module):
    """Counts how often it is computed."""

    def __init__(self, channels):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.relu(self.drop(self.norm(self.conv(x))))


def net(double=False):
    torch.manual_seed(0)
    model = nn.Sequential(Block(8), nn.Flatten(), nn.Linear(8 * 36, 2))
    return model.double() if double else model


def amp_of(**items):
    return ua.Amp("torch", "float32", device="cpu", tuning={**items, "best_effort": True})


def step(amp, model, optimizer, x=BATCH, seed=0):
    torch.manual_seed(seed)
    loss = amp.backward(lambda: model(x).square().mean(), optimizer)
    gradients = {name: grad.clone() for name, grad in amp.gradients(optimizer).items()}
    amp.step(optimizer)
    return loss, gradients


# -- layout ----------------------------------------------------------------------------------------------------------


def test_parameters_and_activations_are_channels_last():
    amp = amp_of(channels_last=True)
    model, optimizer = net(), None
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model, optimizer = amp.prepare(model, optimizer)
    layouts = []
    model[0].conv.register_forward_hook(
        lambda *args: layouts.append(args[2].is_contiguous(memory_format=torch.channels_last))
    )
    step(amp, model, optimizer)
    assert layouts == [True]
    assert model[0].conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert not net()[0].conv.weight.is_contiguous(memory_format=torch.channels_last)
    momentum = optimizer.state[model[0].conv.weight]["momentum_buffer"]
    assert momentum.stride() == model[0].conv.weight.stride()


def test_a_model_without_images_is_told():
    amp = ua.Amp("torch", "float32", device="cpu", tuning={"channels_last": True})
    with pytest.warns(TuningWarning, match="channels_last has no effect here: 'Linear' has no convolution"):
        amp.prepare(nn.Linear(2, 2))
    assert amp.explain().row("tuning.channels_last").effect == "no effect"


# -- optimizers ------------------------------------------------------------------------------------------------------


def settings_of(optimizer):
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("begun", [False, True])
def test_optimizers_are_fused_and_put_back(kind, begun):
    x, runs = torch.linspace(-1, 1, 12).reshape(3, 4), []
    for items in ({}, {"fused_optimizer": True}):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        optimizer = kind(model.parameters(), lr=0.01)
        if begun:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found = settings_of(optimizer)
        amp = amp_of(**items)
        model, optimizer = amp.prepare(model, optimizer)
        assert bool(optimizer.param_groups[0]["fused"]) is bool(items)
        for _ in range(3):
            step(amp, model, optimizer, x)
        amp.close()
        assert settings_of(optimizer) == found
        assert "_step_supports_amp_scaling" not in vars(optimizer)
        model(x).sum().backward()
        optimizer.step()
        runs.append(model)
    for one, other in zip(*(run.parameters() for run in runs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_loaded_checkpoint_leaves_the_optimizer_fused():
    model = nn.Linear(2, 1)
    plain = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    plain.step()
    amp = amp_of(fused_optimizer=True)
    model, optimizer = amp.prepare(model, torch.optim.Adam(model.parameters()))
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["fused"] is True
    step(amp, model, optimizer, torch.ones(1, 2))
    assert int(optimizer.state[model.weight]["step"]) == 2


def test_a_fused_optimizer_skips_an_overflow():
    amp = ua.Amp("torch", "float32", device="cpu", loss_scale=8.0, tuning={"fused_optimizer": True})
    model = nn.Linear(2, 1)
    model, optimizer = amp.prepare(model, torch.optim.Adam(model.parameters()))
    before = model.weight.clone()
    step(amp, model, optimizer, torch.tensor([[1.0, float("inf")]]))
    assert torch.equal(model.weight, before)
    assert amp.skipped_steps == 1


def test_all_groups_are_fused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    groups = [{"params": model[0].parameters(), "fused": True}, {"params": model[1].parameters()}]
    optimizer = amp_of(fused_optimizer=True).prepare(model, torch.optim.Adam(groups))[-1]
    assert [group["fused"] for group in optimizer.param_groups] == [True, True]


def test_an_optimizer_without_a_fused_form_is_told():
    model = nn.Linear(2, 2)
    amp = ua.Amp("torch", "float32", device="cpu", tuning={"fused_optimizer": True})
    with pytest.warns(TuningWarning, match="fused_optimizer has no effect here: RMSprop has no fused form"):
        amp.prepare(model, torch.optim.RMSprop(model.parameters()))
    assert amp.explain().row("tuning.fused_optimizer").effect == "no effect"


def test_an_optimizer_of_sparse_gradients_is_not_fused():
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1))
    amp = ua.Amp("torch", "float32", device="cpu", tuning={"fused_optimizer": True})
    sparse, dense = [torch.optim.SGD(layer.parameters(), 0.5) for layer in model]
    with pytest.warns(TuningWarning, match="fused_optimizer has no effect here: it has embeddings with sparse=True"):
        amp.prepare(model, sparse, dense)
    assert [bool(each.param_groups[0].get("fused")) for each in (sparse, dense)] == [False, True]
    before = model[0].weight.detach().clone()
    amp.backward(lambda: model(torch.tensor([1])).sum(), [sparse, dense])
    expected = before[1] - 0.5 * model[1].weight.detach()[0]
    amp.step(sparse)
    amp.step(dense)
    assert torch.equal(model[0].weight[1], expected)


# -- checkpointing ---------------------------------------------------------------------------------------------------


def test_a_checkpointed_layer_computes_again_what_it_computed():
    """In float64, with dropout and batch norm inside: gradients, statistics, random numbers are those of the plain."""
    results = []
    for items in ({}, {"checkpoint_layers": ["0"]}):
        amp, model = amp_of(**items), net(double=True)
        model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        found = [step(amp, model, optimizer, BATCH.double(), seed=i)[1] for i in range(3)]
        results.append((found, dict(model.named_buffers()), torch.rand(1)))
        assert model[0].calls == (6 if items else 3)
        amp.close()
        model(BATCH.double()).sum().backward()
        assert model[0].calls == (7 if items else 4)
    (plain, buffers, after), (again, others, after_again) = results
    for one, other in zip(plain, again, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert all(torch.equal(buffers[name], others[name]) for name in buffers)
    assert torch.equal(after, after_again)


def test_what_is_inside_a_checkpointed_layer_is_not_checkpointed_by_itself():
    amp, model = amp_of(checkpoint_layers=["0*"]), net()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    step(amp, model, optimizer)
    assert model[0].calls == 2
    assert "'0'; recomputed" in amp.explain().row("tuning.checkpoint_layers").note


def test_inference_computes_once():
    amp, model = amp_of(checkpoint_layers=["0"]), net()
    amp.prepare(model)
    with amp.inference():
        model(BATCH)
    assert model[0].calls == 1


def test_recorded_steps_count_a_checkpointed_layer_once(tmp_path):
    rows = []
    for items in ({}, {"checkpoint_layers": ["0"]}):
        amp, model = amp_of(**items), net()
        model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        with amp.record(lambda record: rows.append(record), every=1):
            step(amp, model, optimizer)
    plain, again = [row for row in rows if row["kind"] == "step"]
    names = [[one["layer"] for one in row["activations"]] for row in (plain, again)]
    assert Counter(names[0]) == Counter(names[1])


# -- settings of the process -----------------------------------------------------------------------------------------


def settings():
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, newer


WANTED = Switches([*switches.TF32, switches.CUDNN_BENCHMARK])


def test_settings_hold_inside_and_are_put_back():
    before = settings()
    with pytest.raises(KeyError), Region("cpu", torch.bfloat16, switches=WANTED):
        assert settings()[:3] == (True, "high", True)
        with WANTED:
            assert settings()[:3] == (True, "high", True)
        assert settings()[:3] == (True, "high", True)
        raise KeyError("inside")
    assert settings() == before
    assert before[0] is False


@pytest.mark.parametrize("found", ["highest", "high", "medium"])
def test_whatever_was_set_comes_back(found):
    before = settings()
    try:
        torch.set_float32_matmul_precision(found)
        here = settings()
        with WANTED:
            pass
        assert settings() == here
    finally:
        torch.set_float32_matmul_precision(before[1])
        if before[3] is not None:
            torch.backends.cuda.matmul.fp32_precision = before[3]
            torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch 2.9 and later")
@pytest.mark.parametrize("found", ["ieee", "tf32"])
def test_what_was_set_by_torchs_newer_names_comes_back(found):
    matmul, before = torch.backends.cuda.matmul, settings()
    try:
        matmul.fp32_precision = found
        with WANTED:
            assert matmul.fp32_precision == "tf32"
        assert matmul.fp32_precision == found
    finally:
        torch.set_float32_matmul_precision("highest")
        matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = before[3], "none"
    assert settings() == before


@pytest.mark.parametrize("form", ["eager", "default"])
def test_settings_hold_in_forward_backward_and_compiled_steps(monkeypatch, form):
    """As on a GPU: the settings are torch's, and can be set without one."""
    monkeypatch.setattr(tuning, "switches_of", lambda *_: WANTED)
    seen = []

    @torch.compiler.disable
    def look(_=None):
        seen.append(settings()[:2])

    @torch.compiler.disable
    def looks(x):
        look()
        x.register_hook(look)
        return x * 1

    amp, model, before = amp_of(tf32=True), nn.Linear(2, 1), settings()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))

    def train(x):
        loss = amp.backward(lambda: looks(model(x)).mean(), optimizer)
        amp.step(optimizer)
        return loss

    (amp.compile(train) if form != "eager" else train)(torch.ones(1, 2))
    assert seen == [(True, "high")] * 2
    assert settings() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_session_on_a_gpu_sets_them():
    before = settings()
    amp = ua.Amp("torch", "float32", tuning={"tf32": True, "cudnn_benchmark": True})
    with amp.autocast():
        assert settings()[:2] == (True, "high")
    assert settings() == before


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_data_loader_is_prefetched():
    data = torch.utils.data.TensorDataset(torch.arange(10.0), torch.arange(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    amp = ua.Amp("torch", "float32", device="cpu")
    made = [(x.tolist(), y.tolist()) for x, y in amp.prefetch(loader)]
    assert made == [(x.tolist(), y.tolist()) for x, y in loader]
    assert len(amp.prefetch(loader)) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_batches_arrive_whole_and_in_order():
    amp = ua.Amp("torch", "float32", device="cuda")
    made = [np.full((256, 1024), i, np.float32) for i in range(20)]
    sums = [batch.square().sum() for batch in amp.prefetch(made, 3) if batch.is_cuda]
    assert [float(each) for each in sums] == [i * i * 256.0 * 1024 for i in range(20)]


# -- debugging switches ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def test_switches_left_on_are_told():
    model = nn.Linear(2, 2)
    with torch.autograd.set_detect_anomaly(True):
        amp = amp_of(set_to_none=True)
        with pytest.warns(TuningWarning, match=r"set_detect_anomaly\(True\) is on"):
            amp.prepare(model)
        row = amp.explain().row("debugging")
        assert "set_detect_anomaly" in row.native
        ua.Amp("torch", "float32", device="cpu").prepare(model)  # no speed was asked for
    with torch.autograd.profiler.profile():
        assert "profiler" in amp.explain().row("debugging").native
    with pytest.raises(KeyError):
        amp.explain().row("debugging")
