"""What users write around the calls: closures, edits of gradients, custom functions, a look at the plan."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session

SCALE = ua.DynamicLossScale(initial_scale=4.0)
NATIVE = ("native", "emulated")


def test_a_closure_runs_once(harness):
    """It may draw random numbers, count, or log."""
    run, calls = probe_run(harness, loss_scale=SCALE), []
    x = run.amp.to_native(np.float32([1.0]))

    def closure():
        calls.append(1)
        return run.model(x)

    run.amp.backward(closure, run.optimizer)
    assert len(calls) == 1


def test_an_error_in_a_closure_comes_out_as_it_is(harness):
    run = probe_run(harness, loss_scale=SCALE)

    def closure():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run.amp.backward(closure, run.optimizer)


@pytest.mark.parametrize("unscaled", [False, True])
def test_gradients_edited_in_the_loop_are_what_is_applied(harness, unscaled):
    """In place where arrays can be written to, else by assigning to the name; both in one statement."""
    run = probe_run(harness, values=(1.0, 1.0, 1.0), loss_scale=SCALE)
    x = run.amp.to_native(np.float32([1.0, 2.0, 3.0]))
    run.amp.backward(lambda: run.model(x), run.optimizer)
    if unscaled:
        run.amp.unscale(run.optimizer)
    found = run.amp.gradients(run.optimizer)
    name = list(harness.parameters(run.model))[1]
    found[name] *= 2.0
    run.amp.step(run.optimizer)
    assert run.weights() == pytest.approx([0.9, 0.6, 0.7], abs=1e-6)


@pytest.mark.parametrize("wanted", ["float32", "bfloat16", None])
@pytest.mark.parametrize("given", ["float32", "bfloat16"])
def test_custom_functions_get_the_dtype_that_they_ask_for(harness, given, wanted):
    amp = session(harness, policy="mixed_bfloat16")
    seen = []

    def body(x):
        seen.append(harness.dtype_of(x))
        return x

    function = type(amp.backend).custom_function(body, wanted)
    cast = type(amp.backend).custom_function(lambda x: x, given)
    x = amp.to_native(np.float32([1.0, 2.0]))
    function(x)
    with amp.autocast():
        function(_in(cast, x, given))
    assert seen == ["float32", wanted or given]


def test_custom_functions_in_inference(harness):
    amp = session(harness, policy="mixed_bfloat16")
    seen = []
    function = type(amp.backend).custom_function(lambda x: seen.append(harness.dtype_of(x)), "bfloat16")
    x = amp.to_native(np.float32([1.0, 2.0]))
    with amp.inference():
        function(x)
    with amp.autocast(enabled=False):
        function(x)
    assert seen == ["bfloat16", "float32"]


def test_operations_in_a_custom_function_are_in_its_dtype(harness):
    """None is cast inside; afterwards the region is as it was, also when the function raises."""
    amp = session(harness, policy="mixed_bfloat16")
    seen = []

    def body(x, fails):
        seen.append(harness.run_op(harness.low_precision_op))
        if fails:
            raise KeyError("mine")

    function = type(amp.backend).custom_function(body, "float32")
    x = amp.to_native(np.float32([1.0, 2.0]))
    with amp.autocast():
        function(x, False)
        seen.append(harness.run_op(harness.low_precision_op))
        with pytest.raises(KeyError, match="mine"):
            function(x, True)
        seen.append(harness.run_op(harness.low_precision_op))
    assert seen == ["float32", "bfloat16"] * 2


def _in(cast, x, dtype):
    """Return ``x`` as a tensor of ``dtype``, by a function that hands on what it was given."""
    return x if dtype == "float32" else cast(x)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_whole_numbers_stay_whole(harness, dtype):
    """Labels and indices."""
    amp = session(harness, policy="mixed_bfloat16")
    back = amp.to_numpy(amp.to_native(np.array([1, 2, 200], dtype)))
    assert back.dtype.kind in "iu"
    assert back.tolist() == [1, 2, 200]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_plan_holds_what_the_backend_does(harness, policy):
    amp = session(harness, policy=policy, loss_scale=SCALE)
    settings = [row.setting for row in amp.backend.explain()]
    assert settings
    plan = amp.explain()
    assert set(settings) <= {row.setting for row in plan}
    assert any(row.effect in NATIVE for row in plan if row.setting in settings)


def test_custom_functions_with_named_inputs(harness):
    """Those given by name, in lists and tuples too, have the dtype asked for; whole numbers keep theirs."""
    amp, seen = session(harness, policy="mixed_bfloat16"), {}

    def body(first, *, second, third, whole):
        seen.update(first=first, second=second, third=third[0], whole=whole)
        return first

    function = type(amp.backend).custom_function(body, "bfloat16")
    x, n = amp.to_native(np.float32([1.0])), amp.to_native(np.int32([1]))
    with amp.autocast():
        function(x, second=x, third=[x], whole=n)
    assert [harness.dtype_of(seen[name]) for name in ("first", "second", "third")] == ["bfloat16"] * 3
    assert amp.to_numpy(seen["whole"]).dtype.kind == "i"
    function(x, second=x, third=[x], whole=n)
    assert [harness.dtype_of(seen[name]) for name in ("first", "second", "third")] == ["float32"] * 3


def test_custom_functions_with_a_mapping(harness):
    """Tensors in it have the dtype asked for; the caller's mapping stays as it is."""
    amp, seen = session(harness, policy="mixed_bfloat16"), {}
    function = type(amp.backend).custom_function(lambda parts: seen.update(parts), "bfloat16")
    x, n = amp.to_native(np.float32([1.0])), amp.to_native(np.int32([1]))
    inner = {"y": x}
    parts = {"x": x, "deep": [inner], "whole": n, "name": "n"}
    with amp.autocast():
        function(parts)
    assert [harness.dtype_of(each) for each in (seen["x"], seen["deep"][0]["y"])] == ["bfloat16"] * 2
    assert (amp.to_numpy(seen["whole"]).dtype.kind, seen["name"]) == ("i", "n")
    assert parts["x"] is x
    assert parts["deep"][0] is inner
    assert inner["y"] is x


def test_a_step_that_needs_a_size_as_a_number(harness, form):
    """After the loss: the gradients that were there are not added to once more where the step is traced again."""
    amp, rate = session(harness, form, loss_scale=8.0), 2.0**-4
    if not (form.startswith("eager") or amp.backend.compiler.replays_traces):
        pytest.skip("the compiler reads Python itself, and traces no step anew")
    with amp.scope():
        model = harness.mlp([(np.zeros((1, 1), np.float32), np.zeros(1, np.float32))])
        optimizer = harness.sgd([model], rate)
    model, optimizer = amp.prepare(model, optimizer)

    def step(x, y):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.clip_grad_value(optimizer, int(x.shape[0]) / 4)  # each gradient is between -2 and -1.8
        amp.step(optimizer)

    step = compiled(amp, form, step)
    for rows in (2, 3):
        step(*(amp.to_native(np.ones((rows, 1), np.float32)) for _ in range(2)))
    assert [float(np.ravel(value)[0]) for value in harness.parameters(model).values()] == [-rate * -1.25] * 2
    assert amp.applied_steps == 2
