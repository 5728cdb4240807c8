"""Which dtype each operation of the vocabulary runs in, and that overrides choose it."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.policy import OP_VOCABULARY

MIXED = ua.Policy.parse("mixed_bfloat16")


def dtype_inside(harness, amp, op):
    with amp.autocast():
        return harness.run_op(op)


@pytest.mark.parametrize("op", OP_VOCABULARY)
def test_an_operation_runs_in_float32_or_in_the_compute_dtype(harness, op):
    amp = session(harness, policy=MIXED)
    inside, after = dtype_inside(harness, amp, op), harness.run_op(op)
    assert (inside, after) in ((None, None), ("float32", "float32"), ("bfloat16", "float32"))


def test_what_a_policy_is_for_runs_in_the_compute_dtype(harness):
    amp = session(harness, policy=MIXED)
    assert dtype_inside(harness, amp, harness.low_precision_op) == "bfloat16"
    assert dtype_inside(harness, session(harness, policy="float32"), harness.low_precision_op) == "float32"


@pytest.mark.needs("op_overrides")
@pytest.mark.parametrize("choice", ["float32", "widest", "compute"])
@pytest.mark.parametrize("op", OP_VOCABULARY)
def test_an_overridden_operation_runs_in_what_was_chosen(harness, op, choice):
    """On float32 inputs "widest" is float32 too. What a backend cannot override it refuses by name."""
    amp = overridden(harness, MIXED, op, choice)
    if harness.overrides_reach_run_op:
        assert dtype_inside(harness, amp, op) in (None, "bfloat16" if choice == "compute" else "float32")
    amp.close()
    assert dtype_inside(harness, session(harness, policy=MIXED), harness.low_precision_op) == "bfloat16"


@pytest.mark.needs("op_overrides")
@pytest.mark.parametrize("op", OP_VOCABULARY)
def test_an_override_leaves_the_other_operations(harness, op):
    """Also those that a framework has as settings of one operator, as MXNet has activations."""
    plain = session(harness, policy=MIXED)
    expected = {each: dtype_inside(harness, plain, each) for each in OP_VOCABULARY}
    plain.close()
    amp = overridden(harness, MIXED, op, "float32" if expected.pop(op) == "bfloat16" else "compute")
    assert {other: dtype_inside(harness, amp, other) for other in expected} == expected


@pytest.mark.needs("op_overrides", "emulation")
@pytest.mark.parametrize("op", OP_VOCABULARY)
def test_an_overridden_operation_is_emulated(harness, op):
    """Also where the machine runs bfloat16, and where the result is a scalar."""
    amp = overridden(harness, MIXED.replace(emulate=True), op, "compute")
    if harness.overrides_reach_run_op:
        assert dtype_inside(harness, amp, op) in (None, "bfloat16")


def overridden(harness, policy, op, choice):
    """Return a session; skip the test where the backend refuses the override by name."""
    refused = ""
    try:
        return session(harness, policy=policy.replace(op_overrides={op: choice}))
    except (ua.UnsupportedError, ua.PolicyNotSupportedError) as refusal:
        refused = str(refusal)
    assert op in refused
    pytest.skip(refused)


@pytest.mark.needs("op_overrides")
def test_linear_layers_kept_in_float32(harness, form):
    """A prepared model whose only products are overridden answers as float32 does."""
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(8, 8)).astype(np.float32), rng.normal(size=8).astype(np.float32)) for _ in range(2)]
    x = rng.normal(size=(4, 8)).astype(np.float32)

    def output(policy):
        amp = session(harness, form, policy=policy)
        with amp.scope():
            model = harness.mlp(layers)
        model = amp.prepare(model)
        call = compiled(amp, form, lambda batch: model(batch))
        with amp.inference(model):
            return amp.to_numpy(call(amp.to_native(x)))

    plain, mixed = output("float32"), output(MIXED)
    kept = output(MIXED.replace(op_overrides={"linear": "float32"}))
    assert np.abs(mixed - plain).max() > 1e-3
    np.testing.assert_allclose(kept, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("policy", ["float32", MIXED], ids=str)
def test_gradients_reach_what_was_selected(harness, policy):
    """The rows of the weight are the rows of the output, so what is taken from it is the gradient of the output."""
    weight = np.float32([[3, -1, 2], [-4, 5, 1], [7, -2, 6]])
    amp = session(harness, policy=policy)
    with amp.scope():
        model = harness.mlp([(weight, np.zeros(3, np.float32))])
        optimizer = harness.sgd([model], 1.0)
    model, optimizer = amp.prepare(model, optimizer)
    x = amp.to_native(np.eye(3, dtype=np.float32))
    amp.backward(lambda: sum(harness.selections(model(x)).values()), optimizer)
    assert amp.step(optimizer).applied
    sizes = np.sort(weight, 1)
    gradient = sum(weight >= sizes[:, [place]] for place in (2, 1)) + (weight > 0.0) + weight
    (found,) = [value for value in harness.parameters(model).values() if value.ndim == 2]
    assert any(np.array_equal(each, weight - gradient) for each in (found, found.T))


@pytest.mark.needs("op_overrides")
@pytest.mark.parametrize("op", ["relu", "gelu", "sigmoid", "tanh", "softplus", "softmax", "sum", "exp"])
def test_an_override_is_of_one_operation(harness, op):
    """The others run in the dtypes that they have without it."""
    others = [other for other in OP_VOCABULARY if other != op]
    try:
        amp = session(harness, policy=MIXED.replace(op_overrides={op: "float32"}))
    except (ua.UnsupportedError, ua.PolicyNotSupportedError) as refusal:
        pytest.skip(str(refusal))
    plain = session(harness, policy=MIXED)
    found = {other: dtype_inside(harness, amp, other) for other in others}
    assert found == {other: dtype_inside(harness, plain, other) for other in others}
