"""Bad input gets a clear error of ours, and nothing is lost."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session
from unifiedamp.explain.shape_advice import advise


@pytest.fixture
def prepared(harness):
    amp = session(harness, loss_scale=4.0)
    model = harness.probe([1.0, 1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    return amp, model, optimizer


def ones(amp):
    return amp.to_native(np.ones(2, np.float32))


def test_step_without_backward(prepared):
    amp, _, optimizer = prepared
    with pytest.raises(ua.StepOrderError, match="no loss went through amp.scale_loss"):
        amp.step(optimizer)


def test_a_mistake_in_a_compiled_step_is_told_as_in_an_eager_one(harness, form):
    """The same error in the same words; the next step is whole."""
    told = []
    for each in ("eager", form):
        run = probe_run(harness, each, loss_scale=4.0)
        amp, optimizer = run.amp, run.optimizer

        def step(x, amp=amp, optimizer=optimizer):
            amp.step(optimizer)
            return x

        with pytest.raises(ua.StepOrderError) as caught:
            compiled(amp, each, step)(amp.to_native(np.float32([1.0])))
        told.append((type(caught.value), str(caught.value)))
        run.feed(1.0)
        assert run.weights() == pytest.approx([0.9], abs=1e-6)
    assert told[0] == told[1]


@pytest.mark.parametrize("alone", ["backward", "step"])
def test_a_step_compiled_apart_from_its_backward(harness, form, alone):
    """It is refused, or right; gradients do not vanish."""
    run = probe_run(harness, form, loss_scale=4.0)
    amp, model, optimizer = run.amp, run.model, run.optimizer

    def backward(x):
        return amp.backward(lambda: model(x), optimizer)

    def step(x):
        amp.step(optimizer)
        return x

    calls = [compiled(amp, form, call) if call.__name__ == alone else call for call in (backward, step)]
    for count in (1, 2):
        try:
            for call in calls:
                call(amp.to_native(np.float32([1.0])))
        except ua.StepOrderError:
            assert run.weights() == [1.0]
            amp.discard_step(optimizer)
        else:
            assert run.weights() == pytest.approx([1.0 - 0.1 * count], abs=1e-6)


def test_which_errors_mean_that_memory_ran_out(harness):
    """Those are reported as such by measured runs; all others come out."""
    device = session(harness).backend.device
    assert [device.out_of_memory(error) for error in (MemoryError(), ValueError("memory"), KeyError("x"))] == [
        True,
        False,
        False,
    ]


def test_step_twice(prepared):
    amp, model, optimizer = prepared
    amp.backward(lambda: model(ones(amp)), optimizer)
    amp.step(optimizer)
    with pytest.raises(ua.StepOrderError, match="since its last step"):
        amp.step(optimizer)


def test_unscale_without_backward(prepared):
    amp, _, optimizer = prepared
    for call in (amp.unscale, lambda o: amp.clip_grad_norm(o, 1.0), lambda o: amp.clip_grad_value(o, 1.0)):
        with pytest.raises(ua.StepOrderError, match="no loss went through"):
            call(optimizer)


@pytest.mark.needs("context_form")
def test_scale_loss_before_autocast(prepared):
    amp, model, optimizer = prepared
    loss = model(ones(amp))
    with pytest.raises(ua.StepOrderError, match="inside 'with amp.autocast"):
        amp.scale_loss(loss, optimizer)


def test_scale_loss_after_unscale(prepared):
    amp, model, optimizer = prepared
    amp.backward(lambda: model(ones(amp)), optimizer)
    amp.unscale(optimizer)
    with pytest.raises(ua.StepOrderError, match="already unscaled"):
        amp.backward(lambda: model(ones(amp)), optimizer)


def test_closure_whose_loss_is_no_scalar(prepared):
    amp, model, optimizer = prepared
    x = ones(amp)
    with pytest.raises(ua.LossError, match="scalar"):
        amp.backward(lambda: model(x) * x, optimizer)


@pytest.mark.needs("context_form")
def test_loss_that_is_no_scalar(prepared):
    amp, model, optimizer = prepared
    x = ones(amp)
    with amp.autocast():
        loss = model(x) * x
    with pytest.raises(ua.LossError, match="scalar"), amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()


@pytest.mark.parametrize("loss", [None, 1.0, "native", "mapping"])
def test_a_loss_that_is_no_floating_tensor(prepared, loss):
    """Whole numbers have no gradient, and what is no tensor has none either."""
    amp, model, optimizer = prepared
    wrong = {"native": amp.to_native(np.int32(3)), "mapping": {"loss": 1.0}}.get(loss, loss)

    def closure():
        model(ones(amp))
        return wrong

    with pytest.raises(ua.LossError, match="loss"):
        amp.backward(closure, optimizer)
    amp.backward(lambda: model(ones(amp)), optimizer)
    assert amp.step(optimizer).applied


def test_unprepared_optimizer(harness, prepared):
    amp, model, _ = prepared
    other = harness.sgd([harness.probe([1.0])], 0.1)
    for call in ("step", "backward"):
        with pytest.raises(ua.WrongObjectError, match=rf"amp\.{call}: this \w+ has not been prepared"):
            amp.step(other) if call == "step" else amp.backward(lambda: model(ones(amp)), other)
    with pytest.raises(ua.WrongObjectError, match="list is empty"):
        amp.backward(lambda: model(ones(amp)), [])


def test_an_error_in_a_step_leaves_the_session_usable(prepared, harness):
    amp, model, optimizer = prepared
    with pytest.raises(ZeroDivisionError), amp.autocast():
        model(ones(amp))
        raise ZeroDivisionError
    amp.discard_step(optimizer)
    amp.backward(lambda: model(ones(amp)), optimizer)
    assert amp.step(optimizer).applied


@pytest.mark.parametrize("wrong", [[1, 2], "model", None, 3.0])
def test_wrong_objects_to_prepare(harness, wrong):
    amp = session(harness)
    with pytest.raises(ua.WrongObjectError):
        amp.prepare(harness.probe([1.0]), wrong)


def test_prepare_nothing(harness):
    with pytest.raises(ua.WrongObjectError, match="needs a model"):
        session(harness).prepare()


def test_optimizer_of_another_model(harness):
    amp = session(harness)
    with pytest.raises(ua.PrepareError, match=r"model"):
        amp.prepare(harness.probe([1.0]), harness.sgd([harness.probe([1.0])], 0.1))


def test_unknown_backend_option(harness):
    with pytest.raises(ua.ConfigError, match=f"backend_options.{harness.backend} has no setting 'no_such_setting'"):
        ua.Amp(harness.backend, "float32", backend_options={harness.backend: {"no_such_setting": 1}})


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "2"])
def test_bad_accumulate_steps(harness, bad):
    with pytest.raises(ua.ConfigError, match="accumulate_steps must be a whole number"):
        ua.Amp(harness.backend, "float32", accumulate_steps=bad)


@pytest.mark.parametrize("bad", [0, -1.0, "1", None])
def test_bad_clip(prepared, bad):
    amp, _, optimizer = prepared
    with pytest.raises(ua.ConfigError, match="must be a positive number"):
        amp.clip_grad_norm(optimizer, bad)


@pytest.mark.needs("layer_overrides")
def test_layer_glob_errors(harness):
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(4, 4)).astype(np.float32), np.zeros(4, np.float32)) for _ in range(2)]

    def prepare(overrides):
        amp = session(harness, policy=ua.Policy.parse("mixed_bfloat16").replace(layer_overrides=overrides))
        with amp.scope():
            model = harness.mlp(layers)
        amp.prepare(model)

    prepare({"layer0": "float32"})
    with pytest.raises(ua.PolicyError, match="matches no layer"):
        prepare({"no_such_layer*": "float32"})
    with pytest.raises(ua.PolicyError, match="matched by"):
        prepare({"layer*": "float32", "*0": "float32"})
    with pytest.raises(ua.PolicyError, match="matches no layer"):
        prepare({"Layer0": "float32"})


@pytest.mark.needs("several_optimizers")
def test_strict_refuses_what_warns(harness):
    """A step without gradients warns; a strict session raises."""
    amp = session(harness, loss_scale=4.0, strict=True)
    first, second = harness.probe([1.0]), harness.probe([1.0])
    first, _, one, two = amp.prepare(first, second, harness.sgd([first], 0.1), harness.sgd([second], 0.1))
    x = amp.to_native(np.ones(1, np.float32))
    amp.backward(lambda: first(x), one)
    amp.step(one)
    with pytest.raises(ua.StepOrderError, match="gradient"):
        amp.step(two)


@pytest.mark.needs("context_form")
@pytest.mark.parametrize("window", [1, 2])
def test_scale_loss_outside_a_region_after_a_step(harness, window):
    """One region is good for one step, or one micro-batch."""
    amp = session(harness, loss_scale=4.0, accumulate_steps=window)
    model = harness.probe([1.0, 1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    for _ in range(3):
        amp.backward(lambda: model(ones(amp)), optimizer)
        amp.step(optimizer)
        with pytest.raises(ua.StepOrderError, match="inside 'with amp.autocast"):
            amp.scale_loss(model(ones(amp)), optimizer)


def test_parameters_of_16_bits_under_a_policy_of_float32(harness):
    """They are refused, or trained in float32: a tiny update is not lost."""
    low = session(harness, policy=harness.pure_policies["float16"])
    with low.scope():
        model = harness.probe([1.0])
    model = low.prepare(model)
    low.close()
    amp = session(harness, loss_scale=4.0)
    try:
        model, optimizer = amp.prepare(model, harness.sgd([model], 2.0**-13))
    except ua.PrepareError:
        return
    x = amp.to_native(np.float32([1.0]))
    amp.backward(lambda: model(x), optimizer)
    amp.step(optimizer)
    assert harness.parameters(model).popitem()[1] == [1.0 - 2.0**-13]


def test_objects_come_back_in_the_order_given(harness):
    amp = session(harness, loss_scale=4.0)
    models = [harness.probe([1.0]), harness.probe([1.0, 2.0])]
    optimizer, first, second = amp.prepare(harness.sgd(models, 0.1), *models)
    assert [len(harness.parameters(model)) for model in (first, second)] == [1, 2]
    amp.discard_step(optimizer)


def test_an_optimizer_that_cannot_be_checked_is_refused(harness):
    """Before anything of it changes; the model trains with another one then."""
    amp = session(harness, loss_scale=4.0)
    model = harness.probe([1.0, 1.0])
    for name, optimizer in harness.refused_optimizers(model).items():
        with pytest.raises(ua.PrepareError) as caught:
            amp.prepare(model, optimizer)
        assert str(caught.value), name
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.5))
    amp.backward(lambda: model(ones(amp)), optimizer)
    assert amp.step(optimizer).applied
    assert [float(value[0]) for value in harness.parameters(model).values()] == [0.5, 0.5]


def test_scopes_under_which_no_model_trains_are_refused(harness):
    """When the model is made in the session's scope, and when it is prepared."""
    for name, context in harness.refused_scopes().items():
        amp = session(harness, loss_scale=4.0)
        with context:
            with pytest.raises(ua.UnsupportedError, match="amp.scope"), amp.scope():
                pytest.fail(f"{name}: the scope was entered")
            model = harness.probe([1.0, 1.0])
            optimizer = harness.sgd([model], 0.1)
            with pytest.raises(ua.UnsupportedError, match="amp.prepare"):
                amp.prepare(model, optimizer)


def test_sizes_are_not_advised_for_an_unknown_dtype(prepared):
    """Also by a backend that advises none: the nearest dtype is named."""
    amp, model, _ = prepared
    with pytest.raises(ua.ConfigError, match="did you mean 'float16'"):
        advise(amp.backend, [model], "float61")


@pytest.mark.parametrize("device", ["", "cpux", "0", "cpu:x", "cpu:-1", "abacus:0"])
def test_a_name_of_no_device_is_refused(harness, device):
    with pytest.raises(ua.ConfigError, match="device"):
        ua.Amp(harness.backend, "float32", device=device)


def test_the_device_that_is_named_is_used(harness):
    """By its name, and with a number; the plan names it."""
    for device in ("cpu", "cpu:0"):
        amp = ua.Amp(harness.backend, "float32", device=device)
        x = amp.to_native(np.float32([1.0, 2.0]))
        model = amp.prepare(harness.probe([1.0, 2.0]))
        with amp.inference(model):
            assert float(np.ravel(amp.to_numpy(model(x)))[0]) == 5.0
        (row,) = [row for row in amp.explain() if row.setting == "backend"]
        assert "cpu" in row.value


def test_a_model_whose_precision_is_fixed_warns(harness, tmp_path):
    """Under a mixed policy, which it does not follow; not in float32."""
    model = harness.fixed_graph(tmp_path)
    session(harness).prepare(model)
    with pytest.warns(ua.PolicyWarning, match="precision"):
        session(harness, policy="mixed_bfloat16").prepare(harness.fixed_graph(tmp_path))
