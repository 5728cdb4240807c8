"""Updates that are rounded on the device: captured like any step, and the host's own results."""

import copy

import pytest
import torch
from captured import SCALE, Trained, assert_same, both
from loops import pretend_reads_sync

import unifiedamp as ua
from unifiedamp.backend import rounding
from unifiedamp_torch.compiling.compile import ready_dynamo
from unifiedamp_torch.training import rounded_update
from unifiedamp_torch.training.bfloat16_rounding import kahan_split, stochastic_
from unifiedamp_torch.training.weight_updates import WeightUpdates

SETTINGS = [
    ("AdamW", {"weight_decay": 0.1}), ("Adam", {"weight_decay": 0.1, "maximize": True}),
    ("SGD", {"momentum": 0.75, "dampening": 0.25, "weight_decay": 0.1}), ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {}),
]  # fmt: skip


def trained(policy, kind, options, steps=8):
    torch.manual_seed(0)
    amp = ua.Amp("torch", policy, device="cpu", loss_scale="none")
    model = torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.Tanh(), torch.nn.Linear(40, 4))
    model, optimizer = amp.prepare(model, getattr(torch.optim, kind)(model.parameters(), lr=2.0**-7, **options))
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        wanted = [torch.randn(param.shape, generator=generator).to(param.dtype) for param in model.parameters()]
        params = list(model.parameters())
        amp.backward(lambda: sum((p * g).sum() for p, g in zip(params, wanted, strict=True)), optimizer)  # noqa: B023
        amp.step(optimizer)
    return amp, model, optimizer


def tensors(amp, model, optimizer):
    moments = [each for state in optimizer.state.values() for each in state.values() if torch.is_tensor(each)]
    return [*map(torch.from_numpy, amp.master_weights(model).values()), *[each.float() for each in moments]]


@pytest.mark.parametrize(("kind", "options"), SETTINGS)
def test_the_formula_is_the_optimizers_own(monkeypatch, kind, options):
    """A compensation leaves out less than 2**-17 of a weight in each step, and each form leaves out something else."""
    native = tensors(*trained("bfloat16;update=kahan", kind, options))
    pretend_reads_sync(monkeypatch)
    ours = trained("bfloat16;update=kahan", kind, options)
    assert isinstance(next(iter(ours[0].backend.weight_updates._prepared.updates.steps.values())), torch.Tensor)
    assert ours[0].backend.weight_updates.steps() == [8]
    for one, other in zip(tensors(*ours), native, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=8 * 2.0**-17)


@pytest.mark.parametrize("policy", ["bfloat16;update=kahan", "float32;state_dtype=bfloat16"])
def test_the_first_step_after_a_load_is_the_devices(monkeypatch, policy):
    """Another kernel may differ in the last bit, and a resumed training would no longer be the uninterrupted one."""
    pretend_reads_sync(monkeypatch)
    amp, model, optimizer = trained(policy, "AdamW", {}, steps=2)
    resumed = trained(policy, "AdamW", {}, steps=0)
    resumed[1].load_state_dict(model.state_dict())
    resumed[2].load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumed[0].load_state_dict(amp.state_dict())
    monkeypatch.setattr(WeightUpdates, "run", lambda *_: pytest.fail("a step of the host"))
    for one, other, prepared in [(amp, model, optimizer), resumed]:
        one.backward(lambda: sum(p.float().square().sum() for p in other.parameters()), prepared)  # noqa: B023
        one.step(prepared)
    for one, other in zip(tensors(amp, model, optimizer), tensors(*resumed), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("policy", ["bfloat16;update=stochastic", "float32;state_dtype=bfloat16"])
def test_rounding_is_the_hosts(monkeypatch, policy):
    """But for a few numbers whose last bits differ before they are rounded."""
    host = tensors(*trained(policy, "AdamW", {}))
    pretend_reads_sync(monkeypatch)
    for one, other in zip(tensors(*trained(policy, "AdamW", {})), host, strict=True):
        assert (one != other).float().mean() < 0.02 or torch.allclose(one, other, rtol=1e-5)
        torch.testing.assert_close(one, other, rtol=2.0**-6, atol=1e-5)


@pytest.mark.parametrize("loss_scale", ["none", SCALE])
@pytest.mark.parametrize(
    ("policy", "kind"),
    [("bfloat16;update=kahan;state_dtype=bfloat16", "AdamW"), ("bfloat16;update=stochastic", "SGD"),
     ("float32;state_dtype=bfloat16", "Adam")],
)  # fmt: skip
def test_captured_steps_are_eager_ones(monkeypatch, policy, kind, loss_scale):
    def feed(run, index):
        return run.feed(index, bad=loss_scale is SCALE and index in (6, 9))

    runs, given = both(monkeypatch, feed, policy=policy, optimizer=kind, fused=False, loss_scale=loss_scale)
    assert_same(runs, given)
    one, other = [tensors(run.amp, run.model, run.optimizer) for run in runs]
    assert all(map(torch.equal, one, other))
    assert [run.amp.backend.weight_updates.steps() for run in runs] == [[18 if loss_scale is SCALE else 20]] * 2


def test_a_write_between_replays_drops_the_compensation(monkeypatch):
    def feed(run, index):
        if index == 12:
            with torch.no_grad():
                next(iter(run.model.parameters())).fill_(0.5)
        return run.feed(index)

    runs, given = both(monkeypatch, feed, policy="bfloat16;update=kahan", fused=False, loss_scale="none")
    assert_same(runs, given)
    one, other = [tensors(run.amp, run.model, run.optimizer) for run in runs]
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize(
    ("policy", "options", "reason"),
    [("float32;state_dtype=float8", {}, "the host packs (the )?moments"),
     ("bfloat16;update=kahan", {"amsgrad": True}, "the host rounds the updates of AdamW with amsgrad=True")],
)  # fmt: skip
def test_what_the_host_rounds_is_not_captured(monkeypatch, policy, options, reason):
    runs = []

    def train():
        run = Trained(monkeypatch, True, policy=policy, loss_scale="none", fused=False)
        run.optimizer.param_groups[0].update(options)
        [run.feed(index) for index in range(6)]
        runs.append(run)

    with pytest.warns(ua.errors.CompileWarning, match=reason):
        train()
    if runs[0].stage is not None:
        assert runs[0].stage.replays == 0


def operands():
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(1000, generator=generator)
    weight, rest = kahan_split(values)
    moments = [make(1000, generator=generator).bfloat16() for make in (torch.randn, torch.rand)]
    return rounded_update.Operands(weight, rest, values.bfloat16(), moments, torch.tensor([3, 5, 7], dtype=torch.int32))


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
def test_compiled_updates_round_too():
    """Inductor drops casts to bfloat16 and back, which would make each compensation zero."""
    ready_dynamo()  # as a step that is compiled by the session leaves it
    numbers = torch.tensor([2.0**-9, 2.0**-9, 1.0, 0.0, 0.1, 0.999, 0.001, 1e-8])
    rule, skip = rounded_update.Rule("AdamW"), torch.zeros(())
    step = rounded_update.step_key(4, torch.tensor(2, dtype=torch.int32))
    assert int(step) & rounding.MASK == rounding.step_key(4, 2)
    plain, compiled = operands(), operands()
    rounded_update.update_(rule, plain, numbers, step, skip)
    dtypes = tuple([None if each is None else each.dtype for each in (*compiled[:3], *compiled.moments)])
    rounded_update.compiled(rule, dtypes)(compiled, numbers, step, skip)
    flat = [[each for each in (*on[:2], *on.moments) if each is not None] for on in (plain, compiled)]
    for one, other in zip(*flat, strict=True):
        assert one.dtype is other.dtype
        assert (one != other).float().mean() < 0.02
    assert compiled.rest.count_nonzero() > 900
    assert torch.equal(kahan_split(compiled.param.float() + compiled.rest.float())[0], compiled.param)
    before = [each.clone() for each in flat[1]]
    rounded_update.compiled(rule, dtypes)(compiled, numbers, step, torch.ones(()))
    assert all(map(torch.equal, flat[1], before)), "a skipped step"


def test_the_bits_are_the_hosts():
    values = torch.randn(5000, generator=torch.Generator().manual_seed(2))
    target = torch.empty(5000, dtype=torch.bfloat16)
    stochastic_(target, values.clone(), 3, rounding.step_key(4, 2))
    on = rounded_update.Operands(target.clone(), None, values, [], torch.tensor([3], dtype=torch.int32))
    step = rounded_update.step_key(4, torch.tensor(2, dtype=torch.int32))
    assert torch.equal(rounded_update._kept(on.param, values, on, -1, step).bfloat16(), target)
    for one, other in zip(rounded_update.kahan_split(values), kahan_split(values), strict=True):
        assert torch.equal(one, other.float())
