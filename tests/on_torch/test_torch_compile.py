"""torch.compile of a whole step: same results, one graph for the forward, no retracing."""

import copy
import logging

import pytest
import torch
from loops import batch, make_step, mlp, session, weights
from torch._dynamo.utils import counters

import unifiedamp as ua
from unifiedamp_torch.compiling.compile import compile_step


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def train(policy, compiled, steps=12, schedule=False, **options):
    amp = session(policy, **options)
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    step = make_step(amp, model, optimizer, clip=1.0)
    step = amp.compile(step) if compiled else step
    losses, frames = [], []
    for seed in range(steps):
        x, y = batch(seed)
        if seed % 5 == 3:
            x[0] = float("inf")
        losses.append(step(x, y).item())
        if schedule:
            scheduler.step()
        frames.append((counters["stats"]["unique_graphs"], counters["frames"]["total"]))
    return amp, model, losses, frames


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_results_are_those_of_eager(policy):
    scale = ua.DynamicLossScale(initial_scale=4.0, growth_interval=2)
    eager, model, losses, _ = train(policy, False, loss_scale=scale)
    other, twin, same, _ = train(policy, True, loss_scale=scale)
    assert eager.state_dict()["state"] == other.state_dict()["state"]
    assert same == pytest.approx(losses, rel=2e-2 if policy != "float32" else 1e-5, nan_ok=True)
    for a, b in zip(weights(model), weights(twin), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-3 if policy != "float32" else 1e-5)


def test_one_graph_for_the_forward_and_no_retracing(caplog):
    with caplog.at_level(logging.WARNING):
        _, _, _, frames = train("mixed_bfloat16", True, steps=60, schedule=True, loss_scale="dynamic")
    assert frames[2:] == [frames[2]] * 58
    # The region's model and loss are one graph.
    assert frames[-1][0] == 1
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_closure_form_does_not_retrace():
    amp = session("mixed_bfloat16", loss_scale="dynamic")
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

    @amp.compile
    def step(x, y):
        loss = amp.backward(lambda: torch.nn.functional.cross_entropy(model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    graphs = []
    for seed in range(20):
        step(*batch(seed))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[2:] == [graphs[2]] * 18
    assert graphs[-1] >= 1
    assert amp.applied_steps == 20


@pytest.mark.parametrize("mode", ["off", "default", "max"])
def test_the_mode_is_explained(mode):
    amp = ua.Amp("torch", "float32", compile=mode)
    assert amp.explain().row("compile").value == mode
    amp.close()


def test_a_gradient_penalty_in_a_compiled_step_is_refused():
    amp = session()
    net = mlp()
    model, optimizer = amp.prepare(net, torch.optim.SGD(net.parameters(), 0.1))

    @amp.compile
    def step(x):
        def loss():
            given = x.clone().requires_grad_()
            out = model(given).logsumexp(1).mean()
            (slope,) = torch.autograd.grad(out, given, create_graph=True)
            return out + slope.square().mean()

        amp.backward(loss, optimizer)
        amp.step(optimizer)

    with pytest.raises(ua.UnsupportedError, match=r"holds gradients .* leave the step uncompiled"):
        step(batch()[0])
    assert amp.applied_steps == 0


def test_a_compiled_step_honours_op_overrides():
    def run(compiled, **overrides):
        amp = session(ua.Policy(compute_dtype="bfloat16", op_overrides=overrides))
        model = amp.prepare(torch.nn.Linear(8, 8))
        torch.nn.init.constant_(model.weight, 0.3)

        def forward(x):
            with amp.autocast():
                return torch.softmax(model(x).bfloat16(), -1).dtype, torch.nn.functional.linear(x, model.weight)

        forward = amp.compile(forward) if compiled else forward
        out = forward(batch()[0])
        amp.close()
        return out

    plain = run(True)
    for overrides in ({"linear": "float32"}, {"softmax": "float32"}, {"softmax": "float32", "linear": "float32"}):
        wanted, got = run(False, **overrides), run(True, **overrides)
        assert got[0] == wanted[0] == (torch.float32 if "softmax" in overrides else torch.bfloat16)
        assert got[1].dtype == wanted[1].dtype == (torch.float32 if "linear" in overrides else torch.bfloat16)
        torch.testing.assert_close(got[1], wanted[1], rtol=1e-2, atol=1e-2)
    assert plain[1].dtype == torch.bfloat16


@pytest.mark.parametrize("overrides", [{}, {"softmax": "bfloat16"}])
def test_a_step_for_one_shape_computes_the_same(overrides):
    """As it is made where the whole step is captured, for few kernels."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    other = copy.deepcopy(model)

    def step(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        return loss

    x, _ = batch()
    compiled = compile_step(step, lambda: overrides, lambda: False, static=True)
    torch.testing.assert_close(compiled(other, x), step(model, x), rtol=1e-2, atol=1e-3)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, rtol=2e-2, atol=2e-3)
    for one, two in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-2, atol=1e-3)


def test_compiled_code_is_not_shared_between_sessions_of_other_overrides():
    model = torch.nn.Linear(8, 8)
    chosen = session(ua.Policy(compute_dtype="bfloat16", op_overrides={"linear": "float32"}))
    other = session(ua.Policy(compute_dtype="bfloat16", op_overrides={"linear": "compute"}))
    x, _ = batch()
    for _ in range(2):
        for amp, dtype in ((chosen, torch.float32), (other, torch.bfloat16)):
            compiled = amp.compile(model)
            with amp.autocast():
                assert compiled(x).dtype == dtype
    chosen.close()
    other.close()


def test_other_overrides_for_a_region_of_a_compiled_step_are_refused():
    amp = session("mixed_bfloat16")
    other = ua.Policy(compute_dtype="bfloat16", op_overrides={"softmax": "float32"})

    @amp.compile
    def step(x):
        with amp.autocast(policy=other):
            return torch.softmax(x, -1)

    with pytest.raises(ua.UnsupportedError, match="inside a compiled step"):
        step(batch()[0])


def test_layer_overrides_in_a_compiled_step():
    policy = ua.Policy(compute_dtype="bfloat16", layer_overrides={"3": "float32"})
    _, model, losses, frames = train(policy, True, steps=6)
    _, twin, same, _ = train(policy, False, steps=6)
    assert losses == pytest.approx(same, rel=2e-2, nan_ok=True)
    assert frames[2:] == [frames[2]] * 4
    for a, b in zip(weights(model), weights(twin), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-3, equal_nan=True)


def test_a_module_can_be_compiled():
    amp = session("mixed_bfloat16")
    model = amp.prepare(mlp())
    compiled = amp.compile(model)
    assert isinstance(compiled, torch.nn.Module)
    x, _ = batch()
    with amp.autocast():
        assert compiled(x).dtype == torch.float32
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=1e-2)


def test_a_model_compiled_in_place_and_traced_before_prepare():
    model = mlp()
    model.compile(backend="eager")
    x, _ = batch()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    amp = session("mixed_bfloat16")
    model = amp.prepare(model)
    with amp.autocast():
        assert model(x).dtype == torch.float32
