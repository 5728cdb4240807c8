"""Op overrides at the dispatch key, and layers in another dtype."""

import threading

import pytest
import torch
import torch.utils.checkpoint
from loops import batch, mlp, session

import unifiedamp as ua
from unifiedamp.policy import OP_VOCABULARY
from unifiedamp_torch.conformance.harness import harness
from unifiedamp_torch.precision.layers import layer_dtypes

LOW = torch.bfloat16


def without_low_lstm() -> str:
    """Why the harness does not run torch's bfloat16 LSTM, if it does not: oneDNN has none for CPUs without AVX512."""
    if harness.run_op("rnn") is not None:
        return ""
    if torch.cuda.is_available():
        return "beside a GPU the harness leaves the LSTM out: torch's autocast takes float16 there"
    refused = pytest.raises(RuntimeError, match="could not create a primitive descriptor for the LSTM forward")
    with refused, torch.autocast("cpu", LOW):
        torch.nn.LSTM(8, 8)(torch.ones(8, 8))
    return "torch has no bfloat16 LSTM for this CPU"


def policy(**overrides):
    return ua.Policy(compute_dtype="bfloat16", op_overrides=overrides)


@pytest.fixture
def make_session():
    opened = []

    def make(chosen):
        opened.append(session(chosen))
        return opened[-1]

    yield make
    for amp in opened:
        amp.close()


@pytest.mark.parametrize("op", OP_VOCABULARY)
@pytest.mark.parametrize(("choice", "dtype"), [("compute", "bfloat16"), ("float32", "float32"), ("widest", "float32")])
def test_every_operation_can_be_set(make_session, op, choice, dtype):
    if op == "rnn" and (reason := without_low_lstm()):
        pytest.skip(reason)
    amp = make_session(policy(**{op: choice}))
    with amp.autocast():
        assert harness.run_op(op) == dtype
        with amp.autocast(enabled=False):
            assert harness.run_op(op) == "float32"
    assert harness.run_op(op) == "float32"


def test_widest_looks_at_the_inputs(make_session):
    amp = make_session(policy(matmul="widest"))
    low, high = torch.ones(2, 2, dtype=LOW), torch.ones(2, 2)
    with amp.autocast():
        assert torch.matmul(low, low).dtype == LOW
        assert torch.matmul(low, high).dtype == torch.float32


def test_others_see_torchs_own_autocast(make_session):
    """Another session, a plain torch.autocast and another thread, while the kernels are there."""
    amp = make_session(policy(matmul="float32", exp="compute", cross_entropy="compute", rnn="float32"))
    plain = make_session(ua.Policy.parse("mixed_bfloat16"))
    seen = {}

    def look():
        with torch.autocast("cpu", LOW):
            seen.update({op: harness.run_op(op) for op in native})

    native = {"matmul": "bfloat16", "exp": "float32", "cross_entropy": "float32", "rnn": "bfloat16"}
    if without_low_lstm():
        del native["rnn"]
    with amp.autocast():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(30)
        assert seen == native
        with plain.autocast():
            assert {op: harness.run_op(op) for op in native} == native
        assert harness.run_op("matmul") == "float32"
    look()
    assert seen == native


def kernels(name):
    return torch._C._dispatch_dump(f"aten::{name}").count("unifiedamp_torch")


def test_kernels_go_with_their_last_session():
    first, second = session(policy(exp="compute")), session(policy(exp="float32"))
    assert kernels("exp") > 0
    first.close()
    first.close()
    with second.autocast():
        assert torch.exp(torch.ones(2, dtype=LOW)).dtype == torch.float32
    second.close()
    assert kernels("exp") == 0
    with torch.autocast("cpu", LOW):
        assert torch.exp(torch.ones(2)).dtype == torch.float32


def test_kernels_go_with_a_forgotten_session():
    amp = session(policy(log="compute"))
    assert kernels("log") > 0
    del amp
    import gc

    gc.collect()
    assert kernels("log") == 0


def test_gradients_flow_through_an_overridden_operation(make_session):
    amp = make_session(policy(linear="float32", softmax="compute"))
    model = mlp()
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x, _ = batch()
    amp.backward(lambda: torch.softmax(model(x), -1).square().mean(), optimizer)
    overridden = {name: grad.clone() for name, grad in amp.gradients(optimizer).items()}
    assert len(overridden) == 4
    amp.step(optimizer)
    assert all(grad.dtype == torch.float32 for grad in overridden.values())


def test_a_recomputed_forward_is_under_the_same_overrides(make_session):
    amp = make_session(policy(softmax="compute"))
    model = torch.nn.Linear(8, 8)
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    seen = []

    def block(x):
        out = torch.softmax(x, -1)
        seen.append(out.dtype)
        return torch.exp(out.float())

    x, _ = batch()
    amp.backward(
        lambda: torch.utils.checkpoint.checkpoint(block, model(x), use_reentrant=False).square().mean(), optimizer
    )
    assert seen == [LOW, LOW]


def test_batch_norm_moves_its_statistics_when_overridden(make_session):
    amp = make_session(policy(batch_norm="compute"))
    norm = torch.nn.BatchNorm1d(8)
    with amp.autocast():
        assert norm(torch.randn(16, 8) + 3).dtype == LOW
    assert norm.running_mean.mean().item() == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_an_override_without_autocast_says_that_it_has_no_effect(name):
    chosen = ua.Policy.parse(name).replace(op_overrides={"softmax": "float32"})
    with pytest.warns(ua.errors.PolicyWarning, match="have no effect"):
        session(chosen)
    slow = session().backend.capabilities().policies[name].helps is False  # which is said first
    with pytest.raises(ua.PolicyError, match="cannot help" if slow else "have no effect"):
        session(chosen, strict=True)


class Spy(torch.nn.Module):
    """Notes what it gets and what a linear layer computes in here."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x, *, scale=1.0):
        self.seen = (x.dtype, self.inner(x).dtype)
        return self.inner(x) * scale


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = Spy(), Spy()

    def forward(self, x):
        return self.high(x=self.low(x), scale=2.0)


def test_a_float32_layer_in_a_mixed_model():
    amp = session(ua.Policy(compute_dtype="bfloat16", layer_overrides={"high": "float32"}))
    model = amp.prepare(Two())
    x = torch.ones(2, 4)
    with amp.autocast():
        model(x)
    assert model.low.seen == (torch.float32, LOW)
    assert model.high.seen == (torch.float32, torch.float32)
    amp.close()
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
    assert model.high.seen == (LOW, LOW)


def test_a_compiled_part_has_the_layer_paths_of_its_own_module():
    amp = session(ua.Policy(compute_dtype="bfloat16", layer_overrides={"0.high": "float32"}))
    part = Two()
    model = amp.prepare(torch.nn.Sequential(torch.compile(part, backend="eager")))
    with amp.autocast():
        model(torch.ones(2, 4))
    assert part.high.seen == (torch.float32, torch.float32)
    assert part.low.seen == (torch.float32, LOW)


def test_a_layer_that_another_tool_wrapped_is_its_own_after_closing():
    """Its forward cannot be put back, since the tool holds the session's."""
    amp = session(ua.Policy(compute_dtype="bfloat16", layer_overrides={"high": "float32"}))
    model = amp.prepare(Two())
    inner = model.high.forward
    model.high.forward = lambda *args, **kwargs: inner(*args, **kwargs)
    for closed, expected in ((False, torch.float32), (True, LOW)):
        if closed:
            amp.close()
        with torch.autocast("cpu", LOW):
            model(torch.ones(2, 4))
        assert model.high.seen == (expected, expected)


def test_a_forward_that_was_set_on_a_layer_is_back_after_closing():
    amp = session(ua.Policy(compute_dtype="bfloat16", layer_overrides={"high": "float32"}))
    model = Two()
    own = model.high.forward = model.high.forward
    amp.prepare(model)
    amp.close()
    assert model.high.forward is own


def test_a_low_layer_in_a_float32_model():
    amp = session(ua.Policy(layer_overrides={"low": "bfloat16"}))
    model = amp.prepare(Two())
    with amp.autocast():
        model(torch.ones(2, 4))
    assert model.low.seen[1] == LOW
    assert model.high.seen == (torch.float32, torch.float32)


def test_a_float32_layer_in_a_pure_model():
    amp = session(ua.Policy("bfloat16", "bfloat16", "bfloat16", layer_overrides={"high": "float32"}))
    model = amp.prepare(Two())
    assert model.high.inner.weight.dtype == torch.float32
    with amp.autocast():
        assert model(torch.ones(2, 4)).dtype == LOW
    assert model.low.seen == (LOW, LOW)
    assert model.high.seen == (torch.float32, torch.float32)


def test_a_layer_that_fails_leaves_autocast_as_it_was():
    class Failing(torch.nn.Module):
        def forward(self, x):
            raise KeyError

    amp = session(ua.Policy(compute_dtype="bfloat16", layer_overrides={"0": "float32"}))
    model = amp.prepare(torch.nn.Sequential(Failing()))
    with amp.autocast():
        with pytest.raises(KeyError):
            model(torch.ones(2))
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("overrides", [{"high*": "float32", "*": "float32"}, {"nothing": "float32"}])
def test_globs_that_clash_or_match_nothing(overrides):
    amp = session(ua.Policy(compute_dtype="bfloat16", layer_overrides=overrides))
    with pytest.raises(ua.PolicyError, match="layer_overrides"):
        amp.prepare(Two())


# -- recurrent layers on CUDA -----------------------------------------------------------------------------------------


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = torch.nn.LSTM(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x):
        self.inside = self.rnn(x)[0]
        return self.head(self.inside)


@pytest.mark.parametrize(
    ("policy", "device", "chosen"),
    [
        ("mixed_bfloat16", "cuda", {"rnn": "float32"}),
        ("mixed_float8", "cuda", {"rnn": "float32"}),
        ("mixed_bfloat16", "cpu", {}),
        ("mixed_float16", "cuda", {}),
        ("bfloat16", "cuda", {}),
        ("mixed_bfloat16;layers=rnn:bfloat16", "cuda", {"rnn": "bfloat16"}),
    ],
)
def test_recurrent_layers_stay_in_float32_where_torch_would_take_float16(policy, device, chosen):
    assert layer_dtypes(Recurrent(), ua.Policy.parse(policy), device) == chosen


class Seen(torch.nn.Linear):
    """Keeps the dtypes that it computes in."""

    def forward(self, x):
        output = super().forward(x)
        self.found = x.dtype, self.weight.dtype, output.dtype
        return output


@pytest.mark.parametrize("name", ["mixed_bfloat16", "bfloat16"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_layer_in_a_float32_block_has_its_own_dtype(name, recomputed):
    """Also where backward computes it again; outside a region it is as torch has it."""
    overrides = {"0": "float32", "0.0": "bfloat16"}
    amp = ua.Amp("torch", ua.Policy.parse(name).replace(layer_overrides=overrides), device="cpu", loss_scale="none")
    with amp.scope():
        model = torch.nn.Sequential(torch.nn.Sequential(Seen(4, 4), torch.nn.LayerNorm(4)), torch.nn.Linear(4, 1))
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    layer, x = model[0][0], torch.ones(2, 4, requires_grad=True)
    with amp.autocast():
        inside = torch.utils.checkpoint.checkpoint(model[0], x, use_reentrant=False) if recomputed else model[0](x)
        loss = model[1](inside).float().sum()
    assert inside.dtype is (torch.float32 if name == "mixed_bfloat16" else torch.bfloat16)
    assert layer.found[2] is torch.bfloat16
    del layer.found
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    amp.step(optimizer)
    assert not recomputed or layer.found[2] is torch.bfloat16
    if name == "mixed_bfloat16":
        for off in (torch.autocast("cpu", enabled=False), amp.autocast(enabled=False)):
            with off:
                assert model[0](x).dtype is layer.found[2] is torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recurrent_layers_on_a_gpu():
    x = torch.ones(3, 2, 4, device="cuda")
    native = Recurrent().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        native(x)
    assert native.inside.dtype is torch.float16  # torch's fault that this is about
    amp = ua.Amp("torch", "mixed_bfloat16")
    model = amp.prepare(Recurrent())
    with amp.autocast():
        model(x)
    assert model.inside.dtype is torch.float32
    assert "float16" in amp.explain().row("nn.LSTM, nn.GRU, nn.RNN").note
