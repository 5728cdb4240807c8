"""``Tuning`` on every backend: what is asked for happens, or is said not to; training stays what it was."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.backend import TUNING
from unifiedamp.conformance.driver import compiled, settled_state
from unifiedamp.errors import TuningWarning

ITEMS = [name for name in TUNING if name != "checkpoint_layers"]
LACKING = {"compile": ("toy",), "set_to_none": ("toy",), "checkpoint_layers": ("toy", "mxnet")}
"""Item → the backends that may declare to do nothing with it; a skip for any other is a failure."""


def tuned(harness, **items):
    return ua.Amp(harness.backend, "float32", tuning={**items, "best_effort": True})


def support(harness, item):
    return harness.capabilities().tunes(item)


def needs(harness, item):
    answer = support(harness, item)
    if not answer:
        assert harness.backend in LACKING[item], answer.reason
        pytest.skip(answer.reason)


def small(harness):
    rng = np.random.default_rng(0)
    sizes = [(6, 8), (8, 8), (8, 2)]
    return harness.mlp([(rng.normal(0, 0.5, size).astype(np.float32), np.zeros(size[1], np.float32)) for size in sizes])


def train(harness, tuning, form="eager", policy="float32", make=small, steps=4):
    """Return the losses and the parameters of a short training."""
    amp = ua.Amp(harness.backend, policy, tuning=tuning)
    with amp.scope():
        model = make(harness)
        optimizer = harness.sgd([model], 0.1, 0.9)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x, y):
        loss = amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)
        return loss

    run = compiled(amp, form, step)
    rng = np.random.default_rng(1)
    x, y = (amp.to_native(rng.standard_normal((4, size), np.float32)) for size in (6, 2))
    losses = [float(np.asarray(amp.to_numpy(run(x, y))).reshape(-1)[0]) for _ in range(steps)]
    amp.close()
    return losses, harness.parameters(model)


# -- what is written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ("fats", "none of off, fast; did you mean 'fast'"),
        ({"preset": "fist"}, "did you mean 'fast'"),
        ({"chanels_last": True}, "no item 'chanels_last'; did you mean 'channels_last'"),
        ({"tf32": "yes"}, "tuning.tf32 must be true or false, got 'yes'"),
        ({"checkpoint_layers": "encoder.*"}, "must be a list of globs"),
        (["tf32"], "tuning must be a Tuning"),
    ],
)
def test_what_makes_no_sense_is_refused(tuning, message):
    with pytest.raises(ua.ConfigError, match=message):
        ua.Amp("toy", "float32", tuning=tuning)
    if not isinstance(tuning, list):
        with pytest.raises(ua.ConfigError, match=message):
            ua.Amp.from_config({"amp": {"backend": "toy", "policy": "float32", "tuning": tuning}})


def test_fast_is_every_item_but_checkpointing_by_best_effort():
    fast = ua.Tuning.of("fast")
    assert list(fast.asked()) == ITEMS
    assert fast.best_effort
    assert fast == ua.Tuning(**dict.fromkeys(ITEMS, True), best_effort=True)
    assert ua.Tuning.of({"preset": "fast", "tf32": False}) == fast.replace(tf32=False)


def test_a_file_says_the_same(tmp_path):
    path = tmp_path / "amp.toml"
    path.write_text(
        '[amp]\nbackend = "toy"\npolicy = "float32"\n[amp.tuning]\npreset = "fast"\ncheckpoint_layers = ["a.*"]\n'
    )
    assert ua.Amp.from_config(path).tuning == ua.Tuning.of("fast").replace(checkpoint_layers=("a.*",))


def test_its_text_names_what_is_asked_for():
    assert str(ua.Tuning(best_effort=True)) == str(ua.Tuning()) == "off"
    assert str(ua.Tuning(tf32=True, checkpoint_layers=["a.*", "b"])) == "tf32, checkpoint_layers=a.*, b"
    assert str(ua.Tuning(tf32=True, best_effort=True)) == "tf32, best_effort"


def test_nothing_is_changed_unless_asked():
    amp = ua.Amp("toy", "float32")
    assert amp.tuning == ua.Tuning()
    assert not amp.tuning
    assert amp.compile_mode == "default"
    assert amp.explain().row("tuning").value == "off"
    assert [row.setting for row in amp.explain() if row.setting.startswith("tuning.")] == []


def test_compile_gives_way_to_a_mode_that_was_named():
    assert ua.Amp("toy", "float32", tuning="fast").compile_mode == "max"
    assert ua.Amp("toy", "float32", tuning="fast", compile="off").compile_mode == "off"


# -- what is said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", ITEMS)
def test_each_item_is_explained(harness, item):
    amp = tuned(harness, **{item: True})
    row = amp.explain().row(f"tuning.{item}")
    if support(harness, item):
        assert row.effect in ("native", "emulated")
        assert row.native not in ("", "none")
    else:
        assert (row.effect, row.native) == ("no effect", "none")
        assert row.note == f"no effect here: {support(harness, item).reason}"
    assert amp.explain().row("tuning").value == f"{item}, best_effort"
    amp.close()


@pytest.mark.parametrize("item", ITEMS)
def test_what_is_lacking_is_warned_of_and_strictly_refused(harness, item):
    reason = support(harness, item)
    if reason:
        ua.Amp(harness.backend, "float32", tuning={item: True}, strict=True).close()
        return
    with pytest.warns(TuningWarning, match=f"tuning.{item} has no effect here"):
        ua.Amp(harness.backend, "float32", tuning={item: True})
    with pytest.raises(ua.UnsupportedError, match=f"tuning.{item} has no effect here"):
        ua.Amp(harness.backend, "float32", tuning={item: True}, strict=True)


def test_fast_warns_of_nothing_and_strict_takes_it(harness):
    amp = ua.Amp(harness.backend, "float32", tuning="fast", strict=True)
    assert {f"tuning.{item}" for item in ITEMS} <= {row.setting for row in amp.explain()}
    amp.close()


def test_a_backend_that_knows_nothing_of_tuning_works():
    amp = ua.Amp("toy", "float32", tuning="fast")
    notes = {row.note for row in amp.explain() if row.setting.startswith("tuning.")}
    assert notes == {"no effect here: not known to this backend"}


def test_a_mode_that_was_named_leaves_compile_without_effect(harness):
    needs(harness, "compile")
    amp = ua.Amp(harness.backend, "float32", compile="off", tuning={"compile": True})
    assert amp.explain().row("tuning.compile").effect == "no effect"
    amp.close()


def test_a_bias_before_a_batch_norm_is_told_and_left(harness):
    needs(harness, "set_to_none")
    amp = tuned(harness, set_to_none=True)
    with amp.scope():
        model = harness.convnet(0)
    amp.prepare(model)
    row = amp.explain().row("tuning.bias_before_norm")
    assert (row.value, row.native, row.effect) == ("conv", "none", "no effect")
    amp.close()


# -- what happens ----------------------------------------------------------------------------------------------------


def test_global_state_is_left_as_it_was(harness):
    before = settled_state(harness)
    amp = ua.Amp(harness.backend, "float32", tuning="fast")
    with pytest.raises(KeyError), amp.scope():
        raise KeyError("inside")
    with pytest.raises(KeyError), amp.autocast():
        raise KeyError("inside")
    assert harness.global_state() == before
    amp.close()
    assert harness.global_state() == before


@pytest.mark.parametrize("tuning", [{"channels_last": True}, {"fused_optimizer": True}, {"preset": "fast"}])
def test_tuned_training_is_the_same_training(harness, tuning):
    losses, parameters = train(harness, None)
    tuned_losses, tuned_parameters = train(harness, {**tuning, "best_effort": True})
    np.testing.assert_allclose(tuned_losses, losses, rtol=1e-5)
    for name, value in parameters.items():
        np.testing.assert_allclose(tuned_parameters[name], value, rtol=1e-5, atol=1e-6)


def test_checkpointed_training_is_bitwise_the_same(harness, form):
    needs(harness, "checkpoint_layers")
    losses, parameters = train(harness, None, form)
    again, others = train(harness, {"checkpoint_layers": ["layer1"]}, form)
    assert again == losses
    assert losses[-1] < losses[0]
    for name, value in parameters.items():
        np.testing.assert_array_equal(others[name], value)


def test_checkpointing_keeps_the_regions_precision(harness):
    needs(harness, "checkpoint_layers")
    plain = train(harness, None, policy="mixed_bfloat16")
    again = train(harness, {"checkpoint_layers": ["layer*"]}, policy="mixed_bfloat16")
    full = train(harness, {"checkpoint_layers": ["layer*"]})
    assert again[0] == plain[0]
    assert again[0] != full[0]
    for name, value in plain[1].items():
        np.testing.assert_array_equal(again[1][name], value)


def test_a_glob_that_matches_no_layer_is_refused(harness):
    needs(harness, "checkpoint_layers")
    amp = ua.Amp(harness.backend, "float32", tuning={"checkpoint_layers": ["leyer1"]})
    with amp.scope():
        model = small(harness)
    with pytest.raises(ua.PolicyError, match=r"tuning.checkpoint_layers: 'leyer1' matches no layer; did you mean 'lay"):
        amp.prepare(model)
    amp.close()
