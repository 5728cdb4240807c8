"""Float32 master weights on torch: against the loop that does by hand what Apex's O2 did, in plain torch."""

import copy
import math
import warnings

import pytest
import torch
from loops import batch, mlp, pretend_reads_sync, weights
from test_torch_capture import assert_same, both

import unifiedamp as ua

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
KEEP_NORMS = ua.Policy("float16", "float16", "float32", keep_norm_float32=True)


def session(policy, compile="off", **options):
    return ua.Amp("torch", policy, device="cpu", compile=compile, **options)


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
}


def train(amp, model, optimizer, steps=6, accumulate=1, bad=()):
    """Train on batches 0, 1, …; those in ``bad`` hold an inf."""

    @amp.compile
    def step(x, y):
        with amp.autocast():
            loss = torch.nn.functional.cross_entropy(model(x).float(), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.clip_grad_norm(optimizer, 1.0)
        amp.step(optimizer)
        return loss

    for index in range(steps * accumulate):
        x, y = batch(index)
        step(x.fill_(math.inf) if index in bad else x, y)


def by_hand(model, make_optimizer, dtype, steps=6, accumulate=1, scale=1.0):
    """Return the float32 weights of the same training, with no unifiedamp in it."""
    low = copy.deepcopy(model).to(dtype)
    masters = [torch.nn.Parameter(param.detach().clone()) for param in model.parameters()]
    optimizer = make_optimizer(masters)
    for step in range(steps):
        totals = [torch.zeros_like(master) for master in masters]
        for micro in range(accumulate):
            x, y = batch(step * accumulate + micro)
            with torch.no_grad():
                for param, master in zip(low.parameters(), masters, strict=True):
                    param.copy_(master)
            low.zero_grad()
            loss = torch.nn.functional.cross_entropy(low(x.to(dtype)).float(), y)
            (loss * scale / accumulate).backward()
            for total, param in zip(totals, low.parameters(), strict=True):
                total += param.grad.float()
        for master, total in zip(masters, totals, strict=True):
            master.grad = total / scale
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
    return [master.detach() for master in masters]


def masters(optimizer):
    return [param.detach() for group in optimizer.param_groups for param in group["params"]]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("dtype", "accumulate"), [("float16", 1), ("bfloat16", 1), ("float16", 3)])
def test_masters_are_those_of_the_loop_by_hand(dtype, accumulate, kind):
    model = mlp()
    expected = by_hand(model, OPTIMIZERS[kind], getattr(torch, dtype), accumulate=accumulate, scale=1024.0)
    amp = session(dtype, master_weights=True, accumulate_steps=accumulate, loss_scale=1024.0)
    model, optimizer = amp.prepare(model, OPTIMIZERS[kind](model.parameters()))
    train(amp, model, optimizer, accumulate=accumulate)
    for ours, theirs in zip(masters(optimizer), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    for low, theirs in zip(model.parameters(), expected, strict=True):
        assert low.dtype is getattr(torch, dtype)
        assert torch.equal(low, theirs.to(low.dtype))
    assert all(param.grad is None for param in (*model.parameters(), *masters(optimizer)))


def test_compiled_is_eager():
    torch._dynamo.reset()
    found = []
    for mode in ("off", "default"):
        amp = session("bfloat16", master_weights=True, loss_scale=SCALE, compile=mode)
        model = mlp()
        model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
        train(amp, model, optimizer, bad=(2,))
        found.append(masters(optimizer))
        assert (amp.applied_steps, amp.skipped_steps, amp.loss_scale) == (5, 1, 4.0)
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=2e-2, atol=2e-3)  # bfloat16 roundings differ between kernels


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@pytest.mark.parametrize("policy", ["bfloat16", KEEP_NORMS])
def test_a_captured_step_is_eager(monkeypatch, policy, optimizer):
    options = {"policy": policy, "optimizer": optimizer, "master_weights": True, "body": _float32_loss}
    runs, given = both(monkeypatch, lambda run, i: run.feed(i, bad=i % 5 == 3), **options)
    assert_same(runs, given)
    assert runs[1].amp.skipped_steps == 4
    for one, other in zip(*[masters(run.optimizer) for run in runs], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_a_captured_step_takes_over_what_is_written_to_the_model_between_replays(monkeypatch):
    def feed(run, i):
        if i in (7, 12):
            with torch.no_grad():
                for param in run.model.parameters():
                    param.mul_(0.5)
        return run.feed(i)

    runs, given = both(monkeypatch, feed, policy="bfloat16", master_weights=True, body=_float32_loss)
    assert_same(runs, given)


def _float32_loss(run, x, y):
    with run.amp.autocast():
        loss = torch.nn.functional.cross_entropy(run.model(x).float(), y)
    with run.amp.scale_loss(loss, run.optimizer) as scaled_loss:
        scaled_loss.backward()
    run.amp.step(run.optimizer)
    return loss


def test_a_step_skipped_in_the_kernel_changes_nothing(monkeypatch):
    pretend_reads_sync(monkeypatch)
    amp = session("bfloat16", master_weights=True, loss_scale=SCALE)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01, fused=True))
    train(amp, model, optimizer, steps=2)
    before = [tensor.clone() for tensor in (*masters(optimizer), *weights(model))]
    train(amp, model, optimizer, steps=1, bad=(0,))
    for now, then in zip((*masters(optimizer), *weights(model)), before, strict=True):
        assert torch.equal(now, then)
    assert amp.skipped_steps == 1


def linear(value=1.0, outputs=1):
    model = torch.nn.Linear(2, outputs, bias=False)
    torch.nn.init.constant_(model.weight, value)
    return model


def backward(amp, model, optimizer, x=1.0):
    amp.backward(lambda: model(torch.full((1, 2), x)).float().sum(), optimizer)


def after_one_step():
    """Return a session with master weights, a model whose first step changed them alone, and its optimizer."""
    amp = session("bfloat16", master_weights=True)
    model = linear()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=2.0**-12))
    backward(amp, model, optimizer)
    amp.step(optimizer)
    return amp, model, optimizer


def test_gradients_add_up_in_float32_under_the_models_names():
    amp = session("float16", master_weights=True, accumulate_steps=2, loss_scale="none")
    model = linear()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for x in (2.0, 2.0**-11):
        backward(amp, model, optimizer, x)
        if x == 2.0:
            amp.step(optimizer)
    (found,) = amp.gradients(optimizer).items()
    assert found[0] == "weight"
    assert found[1].dtype is torch.float32
    assert found[1].tolist() == [[1 + 2.0**-12] * 2]
    found[1].fill_(0.25)
    amp.step(optimizer)
    assert model.weight.tolist() == [[0.75, 0.75]]


def test_groups_rates_and_schedules_go_on_working():
    amp = session("float16", master_weights=True, loss_scale="none")
    model = torch.nn.ModuleDict({"a": linear(), "b": linear()})
    model.forward = lambda x: model["a"](x) + model["b"](x)
    model["b"].requires_grad_(False)
    optimizer = torch.optim.SGD(model["a"].parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer = amp.prepare(model, optimizer)
    backward(amp, model, optimizer, 2.0**-5)
    amp.step(optimizer, schedule)
    model["b"].requires_grad_(True)
    optimizer.add_param_group({"params": list(model["b"].parameters()), "lr": 4.0})
    backward(amp, model, optimizer, 2.0**-13)
    amp.step(optimizer)
    assert [param.dtype for param in masters(optimizer)] == [torch.float32] * 2
    assert masters(optimizer)[0].tolist() == [[1 - 2.0**-5 - 2.0**-14] * 2]
    assert masters(optimizer)[1].tolist() == [[1 - 2.0**-11] * 2]


def test_each_of_two_optimizers_has_its_masters():
    amp = session("bfloat16", master_weights=True, loss_scale=SCALE)
    models = [linear(), linear()]
    native = [torch.optim.SGD(each.parameters(), lr=2.0**-10) for each in models]
    *models, one, other = amp.prepare(*models, *native)
    amp.backward(lambda: models[1](models[0](torch.ones(1, 2)).expand(1, 2)).float().sum(), one)
    assert models[1].weight.grad is None
    assert set(amp.gradients(one)) == {"weight"}
    assert amp.gradients(other) == {}
    amp.step(one)
    assert masters(one)[0].tolist() == [[1 - 2.0**-9] * 2]
    assert masters(other)[0].tolist() == [[1.0] * 2]


def test_a_model_that_holds_one_prepared_before_keeps_its_masters():
    amp, inner, optimizer = after_one_step()
    outer = amp.prepare(torch.nn.Sequential(inner))
    backward(amp, outer, optimizer)
    amp.step(optimizer)
    assert masters(optimizer)[0].tolist() == [[1 - 2.0**-11] * 2]
    assert amp.master_weights(outer)["0.weight"].tolist() == [[1 - 2.0**-11] * 2]


def test_what_is_written_to_the_model_goes_to_the_masters():
    amp, model, optimizer = after_one_step()
    model.load_state_dict({"weight": torch.full((1, 2), 3.0)})
    backward(amp, model, optimizer)
    with torch.no_grad():
        model.weight.clamp_(max=2.0)
    amp.step(optimizer)
    assert masters(optimizer)[0].tolist() == [[2 - 2.0**-12] * 2]


def test_state_made_before_prepare_follows_the_master():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.5)
    model.weight.grad = torch.full((1, 2), 1 + 2.0**-20)
    optimizer.step()
    optimizer.zero_grad()
    amp = session("bfloat16", master_weights=True)
    model, optimizer = amp.prepare(model, optimizer)
    (buffer,) = [state["momentum_buffer"] for state in optimizer.state.values()]
    assert buffer.tolist() == [[1 + 2.0**-20] * 2]
    assert list(optimizer.state) == optimizer.param_groups[0]["params"]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_closing_gives_back_what_trains_natively(kind):
    amp = session("bfloat16", master_weights=True)
    model = mlp()
    model, optimizer = amp.prepare(model, OPTIMIZERS[kind](model.parameters()))
    train(amp, model, optimizer, steps=2)
    amp.close()
    assert [id(param) for param in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    before = weights(model)
    x, y = batch(5)
    torch.nn.functional.cross_entropy(model(x.bfloat16()).float(), y).backward()
    optimizer.step()
    assert any(not torch.equal(one, other) for one, other in zip(weights(model), before, strict=True))


def test_norms_and_named_layers_in_float32_are_their_own_masters():
    policy = KEEP_NORMS.replace(layer_overrides={"3": "float32"})
    amp = session(policy, master_weights=True)
    model = mlp(norm=True)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    trained = {id(param) for param in optimizer.param_groups[0]["params"]}
    own = {name for name, param in model.named_parameters() if id(param) in trained}
    assert own == {"1.weight", "1.bias", "3.weight", "3.bias"}
    train(amp, model, optimizer, steps=3)
    assert amp.applied_steps + amp.skipped_steps == 3
    assert masters(optimizer)[2] is not None


def test_the_plan_tells():
    row = session("float16", master_weights=True).explain().row("master_weights")
    assert (row.value, row.effect) == ("float32", "native")
    with pytest.raises(KeyError):
        session("float16").explain().row("master_weights")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sparse_gradients_add_up_in_float32(dtype):
    amp = ua.Amp("torch", dtype, master_weights=True, accumulate_steps=2, device="cpu")
    with amp.scope():
        model = torch.nn.Embedding(6, 2, sparse=True)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = amp.prepare(model, optimizer)
    for rows in ([1, 1, 4, 0], [2, 1, 0, 0]):
        amp.backward(lambda rows=rows: model(torch.tensor(rows)).sum(), optimizer)
        amp.step(optimizer)
    (found,) = amp.master_weights(model).values()
    picked = torch.tensor([3.0, 3, 1, 0, 1, 0]).unsqueeze(1) / 2
    assert found == pytest.approx((1 - 0.5 * picked.expand(6, 2)).numpy())


@pytest.mark.parametrize("frozen", [(0,), (1,), (0, 1), ()])
def test_masters_that_a_trainer_freezes_take_no_gradient(frozen):
    """It freezes what its optimizer holds, for some micro-batches: those are not in the window's mean."""
    amp = session("bfloat16", master_weights=True, loss_scale=4.0, accumulate_steps=2)
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    (master,) = optimizer.param_groups[0]["params"]
    for micro, value in enumerate((1.0, 2.0)):
        master.requires_grad_(micro not in frozen)
        amp.backward(lambda value=value: model(torch.full((1, 2), value, dtype=torch.bfloat16)).sum(), optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ua.StepWarning)
            amp.step(optimizer)
    expected = 1.0 - 0.5 * sum(value for micro, value in enumerate((1.0, 2.0)) if micro not in frozen) / 2
    assert model.weight.tolist() == [[expected] * 2]
    assert master.tolist() == [[expected] * 2]
