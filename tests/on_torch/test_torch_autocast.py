"""Regions are torch.autocast's own, reentrant, and leave no trap in the cache of casts."""

import contextlib
import functools
import threading

import pytest
import torch
from loops import batch, make_step, mlp, session

import unifiedamp as ua
from unifiedamp_torch.precision import regions
from unifiedamp_torch.precision.thread_state import entered, nesting


class Mapped(torch.nn.Linear):
    """Takes a dict, and returns what is chosen of it."""

    def forward(self, batch, wanted):
        out = super().forward(batch["x"])
        return {"token": out.argmax(-1), "wide": out.double(), "number": out, "mask": out > 0}[wanted]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_outputs_that_are_no_low_numbers_stay(policy):
    amp = session(ua.Policy.parse(policy).replace(output_dtype="bfloat16"))
    model = amp.prepare(Mapped(4, 4))
    expected = {"token": torch.int64, "wide": torch.float64, "number": torch.bfloat16, "mask": torch.bool}
    with amp.inference(model):
        found = {name: model({"x": torch.ones(2, 4)}, name).dtype for name in expected}
    assert found == expected


class Passing(torch.nn.Linear):
    """Returns its answer beside what else the batch holds."""

    def forward(self, x, others):
        return super().forward(x), others


@pytest.mark.parametrize("layer", [None, "bfloat16"])
def test_numbers_of_other_dtypes_in_containers_stay(layer):
    """float64, complex and integer arrays in a batch and in the answers, of a whole model and of one layer."""
    policy = ua.Policy.parse("float32" if layer else "bfloat16")
    amp = session(policy.replace(layer_overrides={"layer": layer}) if layer else policy)
    passing = Passing(4, 4)
    model = amp.prepare(torch.nn.ModuleDict({"layer": passing}) if layer else passing)
    others = {"wide": torch.ones(2).double(), "wave": torch.ones(2) * 1j, "index": torch.arange(2)}
    with amp.inference(model):
        answer, found = passing(torch.ones(2, 4), others)
    assert {name: each.dtype for name, each in found.items()} == {name: each.dtype for name, each in others.items()}
    assert answer.dtype is (torch.float32 if layer else torch.bfloat16)


def test_a_batch_is_cast_in_a_copy():
    """A user's dict, which may be used again."""
    amp = session("bfloat16")
    model = amp.prepare(Mapped(4, 4))
    x = torch.rand(2, 4)
    given = {"x": x, "index": torch.arange(2)}
    with amp.inference(model):
        model(given, "number")
    assert given["x"] is x
    assert x.dtype == torch.float32


def test_a_forward_without_gradients_does_not_poison_training():
    amp = session("mixed_bfloat16")
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = amp.prepare(model, optimizer)
    x, _ = batch()
    with amp.autocast():
        with torch.no_grad():
            model(x)
        assert model(x).requires_grad
        with amp.inference():
            model(x)
        loss = model(x).square().mean()
    amp.backward(lambda: loss, optimizer)
    assert len(amp.gradients(optimizer)) == 4


def test_a_region_object_can_be_entered_again_while_entered():
    amp = session("mixed_bfloat16")
    region = amp.autocast()
    assert isinstance(region, torch.autocast)
    for _ in range(3):
        with region:
            with amp.autocast(enabled=False), region:
                assert torch.get_autocast_dtype("cpu") == torch.bfloat16
                assert torch.is_autocast_enabled("cpu")
            assert torch.is_autocast_enabled("cpu")
            with region:
                assert torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_enabled("cpu")


def test_one_region_object_in_two_threads():
    amp = session("mixed_bfloat16")
    region = amp.autocast()
    failures = []

    def work():
        for _ in range(300):
            with region:
                if not torch.is_autocast_enabled("cpu"):
                    failures.append("not enabled inside")
            if torch.is_autocast_enabled("cpu"):
                failures.append("enabled outside")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


@pytest.mark.parametrize("enabled", [True, False])
def test_the_cache_option_reaches_torch(enabled):
    amp = session("mixed_bfloat16", backend_options={"torch": {"cache_enabled": enabled}})
    with amp.autocast():
        assert torch.is_autocast_cache_enabled() is enabled
    assert torch.is_autocast_cache_enabled()


def test_another_policy_for_a_region():
    amp = session("mixed_bfloat16")
    with amp.autocast(policy="float32"):
        assert not torch.is_autocast_enabled("cpu")
    plain = session("float32")
    with plain.autocast(policy="mixed_bfloat16"):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16


def test_inference_puts_back_each_modules_own_mode():
    amp = session("mixed_bfloat16")
    model = amp.prepare(mlp(norm=True))
    model.train()
    model[1].eval()
    with pytest.raises(KeyError), amp.inference(model):
        assert not model.training
        assert not torch.is_grad_enabled()
        raise KeyError
    assert torch.is_grad_enabled()
    assert [module.training for module in model] == [True, False, True, True]


def test_the_loop_equals_native_autocast():
    ours, theirs = mlp(), mlp()
    amp = session("mixed_bfloat16")
    model, optimizer = amp.prepare(ours, torch.optim.SGD(ours.parameters(), lr=0.1))
    native = torch.optim.SGD(theirs.parameters(), lr=0.1)
    step = make_step(amp, model, optimizer)
    for seed in range(4):
        x, y = batch(seed)
        step(x, y)
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(theirs(x), y)
        loss.backward()
        native.step()
        native.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def trained_after_no_grad(amp):
    """Return the gradients of a model that ran without gradients earlier in the region."""
    model, (x, y) = mlp(), batch()
    with amp.autocast():
        with torch.no_grad():
            model(x)
        loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return [param.grad for param in model.parameters()]


def test_a_forward_without_gradients_in_a_region_stops_no_layer_from_training():
    expected = trained_after_no_grad(session("mixed_bfloat16", backend_options={"torch": {"cache_enabled": False}}))
    found = trained_after_no_grad(session("mixed_bfloat16"))
    assert all(grad is not None and grad.any() for grad in found)
    for grad, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(grad, wanted)


def test_a_cache_that_loses_gradients_is_done_without(monkeypatch):
    monkeypatch.setattr(regions, "cache_loses_gradients", lambda: True)
    amp = session("mixed_bfloat16")
    assert "cache_enabled=False" in amp.explain().row("compute_dtype").native
    assert all(grad is not None for grad in trained_after_no_grad(amp))
    with pytest.warns(ua.PolicyWarning, match="keeps casts that were made without gradients"):
        amp = session("mixed_bfloat16", backend_options={"torch": {"cache_enabled": True}})
    assert "cache_enabled=True" in amp.explain().row("compute_dtype").native


def test_a_loop_inside_a_region_of_torchs_own_trains_on_the_weights_as_they_are():
    """torch keeps its casts of the weights until the outermost region is left: each step would see the first ones."""

    def losses(around):
        amp = ua.Amp("torch", "mixed_bfloat16", device="cpu")
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        x, seen = torch.randn(8, 4), []
        with around:
            for _ in range(4):
                loss = amp.backward(lambda: (model(x) - 1).square().mean(), optimizer)
                amp.step(optimizer)
                seen.append(loss.item())
        return seen

    assert losses(torch.autocast("cpu", torch.bfloat16)) == losses(contextlib.nullcontext())


ENTERED = ("set_autocast_enabled", "set_autocast_dtype", "autocast_increment_nesting", "set_autocast_cache_enabled")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", ENTERED)
def test_a_region_that_could_not_be_entered_leaves_nothing(call, moment, monkeypatch):
    """A signal inside ``__enter__``: ``with`` never leaves the region, and native loops would train on old casts."""
    amp, native = ua.Amp("torch", "mixed_bfloat16", device="cpu"), getattr(torch, call)
    with amp.autocast():
        inside = (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled(), nesting(), len(entered.stack))

        def interrupted(*args):
            if moment == "after":
                native(*args)
            monkeypatch.setattr(torch, call, native)
            raise KeyboardInterrupt

        for region in (amp.autocast, functools.partial(amp.autocast, enabled=False)):
            with region():
                pass  # its spare native region holds the state of an earlier use
            monkeypatch.setattr(torch, call, interrupted)
            with pytest.raises(KeyboardInterrupt), region():
                raise AssertionError("it was entered")
            now = (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled(), nesting(), len(entered.stack))
            assert now == inside
            assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    assert (nesting(), len(entered.stack)) == (0, 0)
