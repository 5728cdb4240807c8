"""Recording on torch: captured and compiled steps, where inf came from between layers, forwards that do not count."""

import pytest
import torch
from captured import STEPS, Recorded
from loops import batch, make_step, mlp, session
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import unifiedamp as ua
from unifiedamp_torch.compiling.force_eager import ForceEager

nn = torch.nn


def steps_of(records):
    return [record for record in records if record["kind"] == "step"]


def test_a_layer_that_works_in_place_has_its_own_largest_value():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(inplace=True))
    nn.init.eye_(model[0].weight)
    amp, records = session("float32", loss_scale=1.0), []
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    with amp.record(records.append):
        amp.backward(lambda: model(torch.tensor([[-5.0, 1.0]])).sum(), optimizer)
        amp.step(optimizer)
    (record,) = steps_of(records)
    found = {row["layer"]: row["largest"] for row in record["activations"] if row["place"] == "output"}
    assert found == {"0": 5.0, "1": 1.0, "": 1.0}


# -- captured in a CUDA graph (on the CPU a tape stands in for it) ----------------------------------------------------


def test_a_replayed_step_counts_and_is_recorded_by_a_second_graph(monkeypatch):
    ended, records = [], []
    for every in (None, 6):
        run = Recorded(monkeypatch, captured=True)
        torch.manual_seed(3)
        recorder = run.amp.record(records.append, every=every) if every else None
        losses = [run.feed(seed, bad=seed == 14).item() for seed in range(STEPS)]
        ended.append((losses, run.amp.state_dict()["state"], [param.tolist() for param in run.model.parameters()]))
        assert len(run.inner.graphs) == (2 if every else 1)
    assert recorder.step == STEPS
    assert str(ended[0]) == str(ended[1])  # nan is no equal of itself
    assert [(record["step"], record["reason"]) for record in steps_of(records)] == [
        (1, "first"), (6, "every"), (12, "every"), (18, "every"), (19, "after a skip"),
    ]  # fmt: skip
    assert all(len(record["gradients"]) == 4 and record["activations"] for record in steps_of(records))
    (skip,) = [record for record in records if record["kind"] == "skip"]
    assert (skip["since"], skip["step"], skip["count"], skip["exact"]) == (12, 18, 1, False)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("every", [6, None])
def test_the_gradients_of_the_last_skip_are_known_where_looking_waits(monkeypatch, captured, every):
    """Overflow in one gradient alone, at a step nobody recorded: told at the next look, by the device's notes."""
    run = Recorded(monkeypatch, captured=captured, body=_overflows_in_the_last_bias)
    records = []
    recorder = run.amp.record(records.append, every=every or 10**6)
    for seed in range(1, 18):
        run.feed(seed, bad=seed in (9, 10))
        if seed == 11 and not every:
            assert run.amp.backend.training.nonfinite_report().tensors == ("0.3.bias",)
    recorder.stop()
    skips = [record["non_finite"]["gradients"] for record in records if record["kind"] == "skip"]
    assert skips == ([["0.3.bias"]] if every else [])
    assert run.amp.skipped_steps == 2
    run.feed(20)
    assert not reports_kept(run.amp)


def reports_kept(amp):
    """Whether the device keeps what is known of skipped steps."""
    return amp.backend.compiler.steps.reports.keep


def _overflows_in_the_last_bias(run, x, y):
    """Where a batch holds an inf, the gradient of the last bias becomes inf, and no other."""
    amp, optimizer = run.amp, run.optimizer
    with amp.autocast():
        loss = torch.nn.functional.cross_entropy(run.model(x.clamp(-9, 9)), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    run.model[0][3].bias.grad.add_(torch.where(x.isinf().any(), torch.inf, 0.0))
    amp.step(optimizer)
    return loss


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_the_device_is_waited_for_on_recorded_steps_alone(monkeypatch, compiled):
    run = Recorded(monkeypatch, captured=compiled)
    records = []
    with run.amp.record(records.append, every=10):
        for seed in range(40):
            x, y = (each.cuda() for each in batch(seed))
            recorded = seed == 0 or (seed + 1) % 10 == 0
            torch.cuda.set_sync_debug_mode("error" if seed > 20 and not recorded else "default")
            try:
                run.step(x, y)
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert [record["step"] for record in steps_of(records)] == [1, 10, 20, 30, 40]


# -- torch.compile ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_dynamo")
def test_recorded_steps_cost_no_graph(recwarn):
    amp = session("mixed_bfloat16", loss_scale="dynamic")
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    step = amp.compile(make_step(amp, model, optimizer))
    records, graphs = [], []
    with amp.record(records.append, every=4):
        for seed in range(12):
            step(*batch(seed))
            graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == 0  # recorded, so as plain Python
    assert graphs[3:] == [graphs[3]] * 9
    assert graphs[-1] >= 1
    assert [len(record["activations"]) for record in steps_of(records)] == [6] * 4


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_model_compiled_by_itself_is_looked_into():
    amp = session("float32", loss_scale=8.0)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    step = make_step(amp, torch.compile(model), optimizer)
    step(*batch())
    records = []
    with amp.record(records.append, every=3):
        for seed in range(4):
            step(*batch(seed))
    layers = [row["layer"] for row in steps_of(records)[-1]["activations"] if row["place"] == "output"]
    assert layers == ["0", "1", "2", "3", ""]
    assert not ForceEager.active()


# -- the forward pass -------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.last(torch.exp(self.first(x)))


def record_one(model, x, y, policy="float32", wrap=None, loss_scale="dynamic"):
    amp = session(policy, loss_scale=loss_scale)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    records = []
    with amp.record(records.append):
        make_step(amp, wrap(model) if wrap else model, optimizer)(x, y)
    return steps_of(records)[0]


def test_an_operation_between_two_layers_is_told_with_the_layer_that_runs_it():
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(8, 8))
    model.add_module("block", Block())
    with torch.no_grad():
        model.block.first.bias.fill_(100.0)
    found = record_one(model, *batch())["non_finite"]
    assert found["first_activation"] == {
        "layer": "block", "kind": "Block", "place": "inside", "before": "block.last", "after": "block.first",
    }  # fmt: skip
    assert found["loss_was_finite"] is False


@pytest.mark.filterwarnings("ignore::unifiedamp.PolicyWarning")
def test_a_layer_that_overflows_float16_is_named():
    model = mlp(norm=True)
    with torch.no_grad():
        model[3].weight.mul_(1e6)
    found = record_one(model, *batch(), policy="mixed_float16")["non_finite"]
    assert (found["first_activation"]["layer"], found["first_activation"]["kind"]) == ("3", "Linear")


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_forward_that_is_recomputed_counts_once(reentrant):
    x, y = batch()
    x.requires_grad_(True)
    plain = record_one(mlp(), x, y)
    again = record_one(mlp(), x, y, wrap=lambda model: lambda x: checkpoint(model, x, use_reentrant=reentrant))
    assert again["activations"] == plain["activations"]


def test_recomputed_parts_do_not_turn_the_order_of_layers_round():
    def parts(model):
        return lambda x: checkpoint(model[2:], checkpoint(model[:2], x, use_reentrant=True), use_reentrant=True)

    x, y = batch()
    x.requires_grad_(True)
    highest = ua.DynamicLossScale(initial_scale=3e38, max_scale=3e38)
    found = record_one(mlp(), x * 100, y, wrap=parts, loss_scale=highest)["non_finite"]
    assert found["loss_was_finite"] is True
    assert found["gradients"] == ["0.weight", "3.weight"]
    assert found["first_gradient"] == "3.weight"


def test_a_layer_in_evaluation_mode_is_recorded_in_a_training_step():
    """Such as batch norm with statistics that stay."""
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    model[1].eval()
    rows = record_one(model, *batch())["activations"]
    assert [row["layer"] for row in rows if row["place"] == "output" and row["layer"]] == ["0", "1"]


def test_a_tensor_written_over_in_place_is_looked_at_again():
    model = nn.Sequential(nn.Linear(8, 4), nn.Hardtanh(-0.25, 0.25, inplace=True))
    rows = record_one(model, *batch())["activations"]
    largest = {row["layer"]: row["largest"] for row in rows if row["place"] == "output"}
    assert largest["0"] > 0.25
    assert largest["1"] == 0.25


def test_sparse_gradients_are_counted_by_their_rows():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.table(x).mean(1))

    x, y = torch.randint(0, 5, (32, 3)), batch()[1]
    counts = record_one(Bag(), x, y)["gradients"]["table.weight"]["scaled"]
    rows = (counts["zero"] + sum(counts["exponents"].values())) / 8
    assert 0 < rows <= 96
    assert counts["inf"] == counts["nan"] == 0


def test_two_models_keep_their_names_apart():
    amp = session("float32", loss_scale=8.0)
    one, two = mlp(0), mlp(1)
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.01)
    one, two, optimizer = amp.prepare(one, two, optimizer)
    records = []
    with amp.record(records.append):
        x, y = batch()
        amp.backward(lambda: nn.functional.cross_entropy(one(x) + two(x), y), optimizer)
        amp.step(optimizer)
    (record,) = steps_of(records)
    assert {"0.weight", "model1.0.weight"} <= set(record["gradients"])
    assert {"0", "model1.0"} <= {row["layer"] for row in record["activations"]}


def test_an_exception_in_the_middle_of_a_step_leaves_no_hook():
    amp = session("float32", loss_scale=8.0)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    hooks = [len(module._forward_hooks) for module in model.modules()]
    with pytest.raises(ZeroDivisionError), amp.record(lambda _: None):
        with amp.autocast():
            model(batch()[0])
        raise ZeroDivisionError
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    make_step(amp, model, optimizer)(*batch())
    assert amp.applied_steps == 1
