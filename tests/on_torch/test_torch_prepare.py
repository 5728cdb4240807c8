"""What prepare refuses, what it attaches, and that it is taken back."""

import pytest
import torch
from loops import batch, check_copies, make_step, mlp, session, weights

import unifiedamp as ua


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def test_an_optimizer_that_needs_a_closure_is_refused():
    model = mlp()
    with pytest.raises(ua.PrepareError, match=r"LBFGS\.step needs a closure"):
        session().prepare(model, torch.optim.LBFGS(model.parameters()))


class Lookahead(torch.optim.Optimizer):
    """A wrapper as many are written, PostLocalSGDOptimizer of torch among them: without the base class's __init__."""

    def __init__(self, optimizer):
        self.optim, self.param_groups = optimizer, optimizer.param_groups

    def step(self, closure=None):
        return self.optim.step(closure)


def test_an_optimizer_that_torch_did_not_set_up_is_refused():
    model = mlp()
    with pytest.raises(ua.PrepareError, match=r"Lookahead does not call .*prepare the optimizer .* attribute 'optim'"):
        session().prepare(model, Lookahead(sgd(model)))


def test_an_optimizer_over_another_model_is_refused():
    amp = session()
    with pytest.raises(ua.PrepareError, match=r"4 of the 4 parameters of SGD belong to no prepared model.*\(16, 8\)"):
        amp.prepare(mlp(), sgd(mlp()))


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda model, optimizer: [model], r"got list; pass each by itself"),
        (lambda model, optimizer: {"model": model}, r"got dict; pass each by itself"),
        (lambda model, optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1), r"got StepLR; a scheduler needs no"),
    ],
)
def test_what_is_no_model_is_refused_with_a_hint(wrong, hint):
    model = mlp()
    optimizer = sgd(model)
    with pytest.raises(ua.WrongObjectError, match=hint):
        session().prepare(model, optimizer, wrong(model, optimizer))


@pytest.mark.parametrize(
    ("context", "message"),
    [(lambda: torch.device("meta"), r"'0\.weight' of SGD is on the meta"), (torch.inference_mode, "inference_mode")],
)
def test_parameters_that_cannot_be_trained_are_refused(context, message):
    with context():
        model = mlp()
    amp = session()
    with pytest.raises(ua.PrepareError, match=message):
        amp.prepare(model, sgd(model))


def lazy():
    return torch.nn.Sequential(torch.nn.LazyConv2d(4, 1), torch.nn.Flatten(), torch.nn.LazyLinear(2))


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("bfloat16", {"master_weights": True}),
        ("float32", {"tuning": ua.Tuning(channels_last=True)}),
        ("float32", {"tuning": ua.Tuning(fused_optimizer=True)}),
        ("mixed_float8;emulate=true", {}),
    ],
)
def test_lazy_layers_without_a_shape_are_refused_where_it_is_needed(policy, options):
    model = lazy()
    with pytest.raises(ua.PrepareError, match=r"'0\.weight'.*call the model once on a batch"):
        session(policy, **options).prepare(model, sgd(model))


@pytest.mark.parametrize("read", [lambda amp, model: amp.ema(model), lambda amp, model: amp.master_weights(model)])
def test_lazy_layers_without_a_shape_train_and_cannot_be_read(read):
    amp, model = session(), lazy()
    model, optimizer = amp.prepare(model, sgd(model))
    with pytest.raises(ua.PrepareError, match=r"'0\.weight'.*call the model once on a batch"):
        read(amp, model)
    amp.backward(lambda: model(torch.ones(2, 3, 2, 2)).sum(), optimizer)
    assert amp.step(optimizer).applied
    read(amp, model)


def test_half_parameters_under_a_scaler_are_refused_by_name():
    model = mlp()
    model[3].half()
    with pytest.raises(ua.ParamDtypeError, match=r"2 trainable parameters are float16 \(first: '3.weight', '3.bias'\)"):
        session(loss_scale="dynamic").prepare(model)
    for param in model[3].parameters():
        param.requires_grad_(False)
    session(loss_scale="dynamic").prepare(model)


@pytest.mark.parametrize("form", ["eager", "compiled"])
@pytest.mark.parametrize(
    ("policy", "scale", "dtype"),
    [("mixed_float16", 64.0, torch.float16), ("mixed_bfloat16", "none", torch.bfloat16)],
)
def test_a_model_that_is_cast_after_it_was_prepared_is_refused(policy, scale, dtype, form):
    """``prepare`` refuses 16-bit parameters, and a step does so as well: they would train without float32 weights."""
    amp = session(policy, loss_scale=scale)
    model, optimizer = amp.prepare(model := mlp(), sgd(model))
    step = make_step(amp, model, optimizer)
    if form == "compiled":
        step = amp.compile(step)
    step(*batch())
    model.to(dtype)
    before = weights(model)
    with pytest.raises(ua.ParamDtypeError, match=r"parameter '0\.weight' is b?float16 now.*do not cast"):
        step(*batch())
    assert all(map(torch.equal, weights(model), before))
    model.float()
    step(*batch())
    assert amp.applied_steps == 2


@pytest.mark.parametrize("thing", [3, torch.nn.ReLU, "model"])
def test_other_objects_are_refused(thing):
    with pytest.raises(ua.WrongObjectError):
        session().prepare(mlp(), thing)


def test_a_refused_prepare_leaves_the_model_as_it_was():
    model = mlp()
    hooks = len(model._forward_hooks)
    with pytest.raises(ua.PrepareError):
        session("bfloat16").prepare(model, sgd(mlp()))
    assert (len(model._forward_hooks), model[0].weight.dtype) == (hooks, torch.float32)


def test_outputs_are_float32_until_close():
    amp = session("mixed_bfloat16")
    model = amp.prepare(mlp())
    amp.prepare(model)
    x, _ = batch()
    with amp.autocast():
        assert model(x).dtype == torch.float32
    assert len(model._forward_hooks) == 1
    amp.close()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16


def test_outputs_of_any_shape_are_cast():
    class Many(torch.nn.Module):
        def forward(self, x):
            low = x.bfloat16()
            return {"a": low, "b": (low, [low, None]), "ids": torch.ones(2, dtype=torch.long)}

    amp = session("mixed_bfloat16")
    out = amp.prepare(Many())(torch.ones(2))
    assert (out["a"].dtype, out["b"][0].dtype, out["b"][1][0].dtype) == (torch.float32,) * 3
    assert out["ids"].dtype == torch.long
    assert isinstance(out["b"], tuple)


def test_a_model_compiled_by_the_user_keeps_its_parameter_names():
    amp = session(loss_scale=4.0)
    plain = mlp()
    model, optimizer = amp.prepare(torch.compile(plain, backend="eager"), sgd(plain))
    x, y = batch()
    with amp.autocast():
        loss = torch.nn.functional.cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    assert list(amp.gradients(optimizer)) == ["0.weight", "0.bias", "3.weight", "3.bias"]


def test_prepared_models_can_be_copied_and_saved():
    amp = session(ua.Policy(compute_dtype="bfloat16", layer_overrides={"3": "float32"}))
    model = amp.prepare(mlp())
    check_copies(amp, model, 3, batch()[0])


def test_a_loss_for_one_optimizer_gives_the_other_no_gradients():
    amp = session(loss_scale=4.0)
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
    first, second, opt_first, opt_second = amp.prepare(first, second, sgd(first), sgd(second))
    x, _ = batch()
    amp.backward(lambda: second(first(x)).square().mean(), opt_first)
    assert amp.gradients(opt_second) == {}
    assert set(amp.gradients(opt_first)) == {"weight", "bias"}
    amp.backward(lambda: second(first(x)).square().mean(), opt_second)
    assert set(amp.gradients(opt_second)) == {"model1.weight", "model1.bias"}


def test_no_gradients_warns_with_names_and_keeps_the_scale():
    amp = session(loss_scale=4.0)
    model, other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)
    model, other, optimizer, _ = amp.prepare(model, other, sgd(model), sgd(other))
    x, _ = batch()
    amp.backward(lambda: other(x).square().mean(), optimizer)
    with pytest.warns(ua.errors.StepWarning, match="none of its 2 parameters received a gradient.*'weight', 'bias'"):
        outcome = amp.step(optimizer)
    assert tuple(outcome.values) == (False, False, "no_gradients", 4.0, 4.0)


@pytest.mark.parametrize("norm", [True, False])
def test_pure_bfloat16_trains(norm):
    policy = ua.Policy("bfloat16", "bfloat16", "bfloat16", keep_norm_float32=norm)
    amp = session(policy)
    with amp.scope():
        model = mlp(norm=True)
        optimizer = sgd(model)
    model, optimizer = amp.prepare(model, optimizer)
    before = weights(model)
    assert model[0].weight.dtype == torch.bfloat16
    assert model[1].weight.dtype == (torch.float32 if norm else torch.bfloat16)
    step = make_step(amp, model, optimizer)
    x, y = batch()
    losses = [step(x, y).item() for _ in range(20)]
    assert losses[-1] < losses[0]
    assert all(not torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_an_optimizer_with_state_follows_its_parameters():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    amp = session("bfloat16")
    model, optimizer = amp.prepare(model, optimizer)
    assert {state["exp_avg"].dtype for state in optimizer.state.values()} == {torch.bfloat16}
    x, y = batch()
    make_step(amp, model, optimizer)(x, y)


def test_bad_losses_are_refused():
    amp = session("mixed_bfloat16")
    model, optimizer = amp.prepare(*(lambda m: (m, sgd(m)))(mlp()))
    x, _ = batch()
    with amp.autocast():
        for loss, text in [
            (model(x), "scalar"), (model(x).mean().detach(), "not connected"), (1.0, "torch.Tensor"),
            (model(x).mean().reshape(1), "scalar"),
        ]:  # fmt: skip
            with pytest.raises(ua.LossError, match=text):
                amp.scale_loss(loss, optimizer)


def test_a_loss_is_torchs_own_again_after_close():
    """Of a window that was open: it may be differentiated as any other loss."""
    amp = session("float32", loss_scale=8.0)
    model = torch.nn.Linear(3, 1, bias=False)
    model, optimizer = amp.prepare(model, sgd(model))
    with amp.autocast():
        loss = model(torch.ones(1, 3)).sum()
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward(retain_graph=True)
    with pytest.raises(ua.StepOrderError, match="backward"):
        loss.backward(retain_graph=True)
    amp.close()
    loss.backward()
    assert model.weight.grad.tolist() == [[1.0] * 3]


@pytest.mark.parametrize("policy", ["float16", "bfloat16"])
def test_a_fused_optimizer_that_would_not_train_is_refused(policy):
    """torch's own fused SGD returns without an error, and leaves 16-bit parameters as they are on a CPU."""
    param = torch.nn.Parameter(torch.ones(64, dtype=getattr(torch, policy)))
    param.grad = torch.ones_like(param)
    torch.optim.SGD([param], lr=0.25, fused=True).step()
    assert param.eq(1).all(), "it trains here: fused_float32_only of device/kinds.py can go"
    model = torch.nn.Linear(4, 4)
    fused = torch.optim.SGD(model.parameters(), lr=0.25, fused=True)
    with pytest.raises(ua.PrepareError, match=f"fused SGD on 'cpu' does not update {policy} parameters"):
        ua.Amp("torch", policy, device="cpu").prepare(model, fused)
    ua.Amp("torch", policy, device="cpu", master_weights=True).prepare(model, fused)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_a_model_that_returns_whole_numbers(policy):
    """They are no less whole for the policy's output dtype, at any size."""

    class Places(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = torch.nn.Linear(2, 3)

        def forward(self, x):
            return self.dense(x).argmax(-1) + 2**24 + 1

    amp = session(policy)
    model = amp.prepare(Places())
    with amp.inference(model):
        found = model(torch.ones(5, 2))
    assert found.dtype is torch.int64
    assert set(found.tolist()) < {2**24 + 1, 2**24 + 2, 2**24 + 3}
