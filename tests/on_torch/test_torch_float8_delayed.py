"""Delayed scaling on torch: what enters the histories and when, the scales that follow, and the session's state."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from loops import pretend_reads_sync, session
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils._python_dispatch import TorchDispatchMode

import unifiedamp as ua
from unifiedamp.checkpoint.sealed_file import load_checkpoint, save_checkpoint
from unifiedamp.conformance import float8 as kit

POLICY = "mixed_float8;recipe=delayed;amax_history=4;emulate=true"
SIZE = 32


class Run:
    """A linear layer and a ReLU layer under a session; the loss is the sum of the output times given gradients."""

    def __init__(self, policy=POLICY, form="eager", lr=0.0, sizes=(SIZE, SIZE), **options):
        self.amp = session(policy, **options)
        torch.manual_seed(0)
        layers = [torch.nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
        model = torch.nn.Sequential(*layers)
        self.model, self.optimizer = self.amp.prepare(model, torch.optim.SGD(model.parameters(), lr=lr))
        self.step = self._train if form == "eager" else self.amp.compile(self._train)

    def _train(self, x, grad):
        with self.amp.autocast():
            out = self.model(x)
            loss = (out * grad).sum()
        with self.amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.amp.step(self.optimizer)
        return out.detach()

    def feed(self, x=1.0, grad=1.0, seed=0):
        """Run a micro-batch of inputs and gradients with these largest magnitudes."""
        return self.step(ranged(x, seed), ranged(grad, seed + 100))

    def history(self, layer="0"):
        return self.amp.backend.amax_history.read()[layer]


def ranged(largest, seed):
    values = torch.from_numpy(np.random.default_rng(seed).uniform(-0.9, 0.9, (SIZE, SIZE))).bfloat16().float()
    values[0, 0] = 1.0
    return values * largest


def weight_amax(run):
    return run.model[0].weight.detach().abs().max().item()


def test_an_iteration_enters_the_history_once_with_the_largest_of_its_micro_batches():
    run = Run(accumulate_steps=2)
    for x, grad in ((1.0, 8.0), (2.0, 4.0), (0.5, 1.0), (0.25, 2.0)):
        run.feed(x, grad)
    weight = weight_amax(run)
    # The gradient of half a micro-batch's loss.
    np.testing.assert_array_equal(run.history(), np.float32([[0.5, 2.0], [weight, weight], [1.0, 4.0]]))
    for _ in range(4):
        run.feed(4.0, 1.0)
        run.feed(4.0, 1.0)
    assert run.history()[0].tolist() == [4.0, 4.0, 4.0, 4.0]  # four iterations, as amax_history says


def scaled_by(values, scale, format_):
    return format_.round(np.clip(values * scale, -format_.largest, format_.largest)) / scale


@pytest.mark.parametrize("margin", [0, 2])
def test_scales_follow_from_the_history_and_larger_values_saturate(margin):
    run = Run(f"{POLICY};margin={margin}")
    run.feed(2.0, 0.5)
    run.feed(0.5, 0.25, seed=1)
    x, grad = ranged(64.0, 2), ranged(16.0, 3)
    x.requires_grad_()
    out = run.step(x, grad).double().numpy()
    weight, bias = (each.detach().double().numpy() for each in run.model[0].parameters())
    x8 = scaled_by(x.detach().double().numpy(), 448 / 2.0 / 2**margin, kit.E4M3)
    w8 = scaled_by(weight, float(np.float32(448) / np.float32(np.abs(weight).max())) / 2**margin, kit.E4M3)
    g8 = scaled_by(grad.double().numpy(), 57344 / 0.5 / 2**margin, kit.E5M2)
    assert np.abs(x8).max() == 2.0 * 2**margin
    np.testing.assert_allclose(out, x8 @ w8.T + bias, rtol=2**-7, atol=2e-2)
    rounded = 2**-8  # bfloat16's unit roundoff: the product is rounded to it
    np.testing.assert_allclose(x.grad.double().numpy(), g8 @ w8, rtol=2**-10 + rounded, atol=1e-3)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("loss_scale", [None, ua.DynamicLossScale(initial_scale=2.0, growth_interval=1000)])
def test_what_is_not_finite_or_skipped_does_not_enter(bad, loss_scale):
    run = Run(loss_scale=loss_scale)
    run.feed(1.0, 1.0)
    before = run.history().tolist()
    x = ranged(2.0, 1)
    x[3, 3] = bad
    run.step(x, ranged(1.0, 1))
    if loss_scale is not None:
        assert run.amp.skipped_steps == 1
        assert run.history().tolist() == before
    assert run.history()[0][0] == before[0][0]
    run.feed(1.0, 1.0)
    assert np.isfinite(run.history()).all()


def test_evaluation_and_discarded_windows_leave_it_alone():
    run = Run(accumulate_steps=2)
    run.feed(1.0)
    run.feed(1.0)
    before = run.history().tolist()
    with run.amp.inference(run.model):
        run.model(ranged(64.0, 1))
    run.feed(32.0)
    run.amp.discard_step(run.optimizer)
    run.feed(1.0)
    run.feed(1.0)
    assert run.history()[0].tolist() == [1.0, 1.0]
    assert run.history()[:, 1].tolist() == [row[0] for row in before]


def test_native_steps_end_iterations_too():
    run = Run()
    for index in range(2):
        with run.amp.autocast():
            (run.model(ranged(2.0, index)) * ranged(1.0, index)).sum().backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
    assert run.history()[0].tolist() == [2.0, 2.0]


def test_its_state_goes_through_json_and_a_checkpoint_file(tmp_path):
    run = Run(sizes=(SIZE, SIZE, SIZE))
    for x in (4.0, 1.0, 2.0):
        run.feed(x)
    assert not [name for name in run.model.state_dict() if "amax" in name or "scale" in name]
    save_checkpoint(tmp_path / "there", {}, {}, amp=run.amp)
    wanted = run.feed(8.0, seed=5)
    other = Run(sizes=(SIZE, SIZE, SIZE))
    other.feed(1024.0)
    other.amp.load_state_dict(json.loads(json.dumps(load_checkpoint(tmp_path / "there").meta["amp"])))
    assert other.history("1").shape == (3, 3)
    assert torch.equal(other.feed(8.0, seed=5), wanted)
    assert not torch.equal(Run(sizes=(SIZE, SIZE, SIZE)).feed(8.0, seed=5), wanted)


def test_a_loaded_state_forgets_the_iteration_in_progress():
    run, other = Run(), Run()
    run.feed(2.0)
    with other.amp.autocast():
        other.model(ranged(1024.0, 1))
    other.amp.load_state_dict(run.amp.state_dict())
    other.feed(1.0)
    assert other.history()[0].tolist() == [1.0, 2.0]


def test_a_shorter_history_keeps_the_newest():
    run = Run()
    for x in (4.0, 1.0, 2.0):
        run.feed(x)
    with pytest.warns(ua.errors.StateWarning, match="amax_history=4"):
        (other := Run(POLICY.replace("history=4", "history=2"))).amp.load_state_dict(run.amp.state_dict())
    assert other.history()[0].tolist() == [2.0, 1.0]
    with pytest.warns(ua.errors.StateWarning, match="was saved under policy 'mixed_float8;emulate=true'"):
        other.amp.load_state_dict(session("mixed_float8;emulate=true").state_dict())
    assert other.history().shape == (3, 0)


def test_a_state_of_other_layers_is_refused_with_their_names():
    run, other = Run(), Run(sizes=(SIZE, SIZE, SIZE))
    run.feed()
    other.feed()
    with pytest.raises(
        ua.CheckpointError, match=r"other layers: it has '1', which is no float8 layer here\. .*nothing"
    ):
        run.amp.load_state_dict(other.amp.state_dict())
    with pytest.raises(ua.CheckpointError, match=r"other layers: it lacks '1'\."):
        other.amp.load_state_dict(run.amp.state_dict())
    with pytest.raises(ua.CheckpointError, match="it has '0', which is no"):
        session(POLICY).load_state_dict(run.amp.state_dict())
    state = run.amp.state_dict()
    state["amax_history"]["0"] = {**state["amax_history"]["0"], "shape": [1, 3]}
    with pytest.raises(ua.CheckpointError, match=r"amax_history\['0'\] must be float32 numbers of shape \(3, itera"):
        run.amp.load_state_dict(state)
    assert run.history().shape == (3, 1)


def test_nothing_is_read_from_the_device(monkeypatch):
    class Seen(TorchDispatchMode):
        names: set[str] = set()  # noqa: RUF012

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.add(str(func))
            return func(*args, **(kwargs or {}))

    pretend_reads_sync(monkeypatch)
    run = Run(accumulate_steps=2)
    with Seen() as seen:
        for _ in range(4):
            run.feed()
    assert not {name for name in seen.names if "_local_scalar_dense" in name or "item" in name or "nonzero" in name}


def test_compiled_windows_give_the_histories_of_eager():
    eager, compiled = (Run(form=form, lr=2.0**-12, accumulate_steps=2) for form in ("eager", "compiled"))
    for index in range(6):
        wanted, found = (run.feed(2.0 ** (index % 3), 1.0, index) for run in (eager, compiled))
        torch.testing.assert_close(found, wanted, rtol=2**-6, atol=2e-2)
    np.testing.assert_allclose(compiled.history(), eager.history(), rtol=1e-3)
    assert compiled.history().shape == (3, 3)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_compiled_step_begins_anew_after_a_state_without_histories():
    """Its first iteration runs uncompiled again, as that of a new session does, and compiles nothing anew."""
    run, fresh = Run(form="compiled"), Run()
    state = fresh.amp.state_dict()
    for index in range(3):
        run.feed(4.0, 2.0, index)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs
    run.amp.load_state_dict(state)
    assert run.history().shape == (3, 0)
    assert torch.equal(run.feed(2.0, seed=5), fresh.feed(2.0, seed=5))
    run.feed(1.0, seed=6)
    assert counters["stats"]["unique_graphs"] == graphs
    assert run.history()[0].tolist() == [1.0, 2.0]


class Attention(torch.nn.Module):
    """Query and key have all inputs in common; value has another one besides. All weights are the identity."""

    def __init__(self, apart=False):
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))
        for layer in self.children():
            torch.nn.init.eye_(layer.weight)
        self.apart = apart

    def forward(self, x, of_key=1.0):
        keys = x.clone() if self.apart else x
        keys = self.key(keys if of_key == 1.0 else keys * of_key)
        return self.out(self.query(x) + keys + self.value(x) + self.value(2 * x))


def shared(inputs, apart=False, lr=0.0, **options):
    """Train on the inputs; return the session, the model and its outputs."""
    amp = session(f"{POLICY};amax_history=2", **options)
    model = Attention(apart)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=lr))
    outputs = []
    for each in inputs:
        with amp.autocast():
            output = model(*each)
            loss = output.float().square().mean()
        outputs.append(output.detach().float())
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
    return amp, model, outputs


def casts(amp, model):
    """Return how many casts to float8 Inductor is given of a forward pass; its partitioner merges equal operations."""
    counted = []

    def count(graph, _):
        eight = (torch.float8_e4m3fn, torch.float8_e5m2)
        counted.append(sum(node.kwargs.get("dtype") in eight for node in graph.graph.nodes))
        return make_boxed_func(graph.forward)

    parts = min_cut_rematerialization_partition
    backend = aot_autograd(fw_compiler=count, bw_compiler=lambda graph, _: graph, partition_fn=parts)
    compiled = torch.compile(model, backend=backend)
    with amp.autocast():
        compiled(ranged(1.0, 0))
    return sum(counted)


@pytest.mark.usefixtures("fresh_dynamo")
def test_an_input_of_several_layers_is_cast_once():
    # Four weights, the inputs of query and of out, and the two of value.
    assert casts(*shared([(ranged(1.0, seed),) for seed in range(2)])[:2]) == 8
    assert casts(*shared([(ranged(1.0, seed),) for seed in range(2)], apart=True)[:2]) == 9


def test_layers_that_share_a_scale_train_as_those_that_do_not():
    inputs = [(ranged(2.0**seed, seed),) for seed in (1, 3, 0, 2)]
    (_, one, outputs), (_, other, wanted) = (shared(inputs, apart, lr=0.5) for apart in (False, True))
    assert all(map(torch.equal, outputs, wanted))
    assert all(map(torch.equal, one.parameters(), other.parameters()))


def test_no_layer_saturates_by_the_scale_of_another():
    x = ranged(1.0, 0)
    _, _, outputs = shared([(x,), *[(x, 8.0)] * 3])
    torch.testing.assert_close(outputs[0], 5 * x, rtol=0.2, atol=0.2)
    assert float(outputs[1].max()) < 6  # by the histories from before the key's larger input
    torch.testing.assert_close(outputs[3], 12 * x, rtol=0.2, atol=0.4)


def test_a_discarded_window_does_not_tell_which_layers_share_their_inputs():
    amp = session(f"{POLICY};amax_history=2")
    model = Attention()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    for of_key, dropped in ((1.0, True), (8.0, False)):
        with amp.autocast():
            loss = model(ranged(1.0, 0), of_key).float().square().mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        if dropped:
            amp.discard_step(optimizer)
        else:
            amp.step(optimizer)
    assert casts(amp, model) == 9
