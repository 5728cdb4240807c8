"""Which policies a region takes, whatever the session's is and whatever ran before; and which dtype is the widest."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session, settled_state

MIXED = ua.Policy.parse("mixed_bfloat16")
SIZE = 8


def parsed(policy):
    return ua.Policy.parse(policy) if isinstance(policy, str) else policy


def layers():
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(SIZE, SIZE)).astype(np.float32) / 2, np.zeros(SIZE, np.float32)) for _ in range(2)]


def batch():
    """Numbers that every dtype holds."""
    return np.random.default_rng(1).integers(-4, 5, size=(4, SIZE)).astype(np.float32) / 4


def prepared(amp, harness):
    with amp.scope():
        model = harness.mlp(layers())
    return amp.prepare(model)


def dtype_in(harness, amp, policy):
    """The dtype that the harness's operation has in a region of that policy; "refused" where it is."""
    try:
        with amp.autocast(policy=policy):
            return harness.run_op(harness.low_precision_op)
    except (ua.UnsupportedError, ua.PolicyNotSupportedError):
        return "refused"


@pytest.mark.parametrize("fails", [False, True], ids=["whole", "failing"])
@pytest.mark.parametrize(
    "overridden", [False, pytest.param(True, marks=pytest.mark.needs("op_overrides"))], ids=["plain", "overridden"]
)
def test_regions_after_a_compiled_call(harness, form, overridden, fails):
    """A region outside of compiled calls takes what it takes in a session that compiled nothing."""
    op = {"op_overrides": {"linear": "float32"}} if overridden else {}
    other = MIXED.replace(op_overrides={harness.low_precision_op: "float32"})
    regions = (None, MIXED, other, "float32")
    expected = [dtype_in(harness, session(harness, form, MIXED.replace(**op)), each) for each in regions]
    amp = session(harness, form, MIXED.replace(**op))
    model = prepared(amp, harness)
    call = compiled(amp, form, lambda x: model(x))
    for _ in range(2):
        with amp.inference(model):
            if fails:
                with pytest.raises(Exception):  # noqa: B017  # the framework's own
                    np.asarray(amp.to_numpy(call(amp.to_native(np.ones((4, SIZE + 1), np.float32)))))
            else:
                call(amp.to_native(batch()))
        assert [dtype_in(harness, amp, each) for each in regions] == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_region_of_float32_over_parameters_of_16_bits(harness, form, dtype):
    """It computes in float32 on the parameters as they are, or is refused, and leaves nothing behind."""
    own = parsed(harness.pure_policies[dtype])
    amp = session(harness, form, own, loss_scale="none")
    model = prepared(amp, harness)
    call, x = compiled(amp, form, lambda x: model(x)), amp.to_native(batch())
    (w0, w1) = [value for value in harness.parameters(model).values() if value.size == SIZE * SIZE]

    def answer():
        with amp.inference(model):
            return np.float64(amp.to_numpy(call(x)))

    before, found = answer(), settled_state(harness)
    for policy in ("float32", own.replace(compute_dtype="float32", output_dtype="float32")):
        refused, output = "", None
        try:
            with amp.inference(model), amp.autocast(policy=policy):
                output = call(x)
        except (ua.UnsupportedError, ua.PolicyError) as refusal:
            refused = str(refusal)
        if output is None:
            assert "float32" in refused
        else:
            rows = [w if np.abs(w - layers()[i][0]).max() < 0.01 else w.T for i, w in enumerate((w0, w1))]
            exact = np.maximum(batch().astype(np.float64) @ rows[0], 0) @ rows[1]
            rounding = {"float32": 1e-5, "float16": 2.0**-11, "bfloat16": 2.0**-8}[harness.dtype_of(output)]
            np.testing.assert_allclose(np.float64(amp.to_numpy(output)), exact, rtol=rounding, atol=1e-5)
        assert harness.global_state() == found
        np.testing.assert_array_equal(answer(), before)


@pytest.mark.parametrize(("dtype", "last"), [("float16", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_a_disabled_region_over_parameters_of_16_bits(harness, dtype, last):
    """Layers compute in the dtype of their parameters: a square of 1 plus a last place is rounded between them."""
    policy = parsed(harness.pure_policies[dtype])
    if policy.op_overrides:
        pytest.skip(f"declared: in {dtype} not all layers run on this machine")
    amp = session(harness, policy=policy, loss_scale="none")
    pairs = [(1 + last, 0.0), (1.0, -(1 + 2 * last))]
    with amp.scope():
        model = harness.mlp([(np.float32([[weight]]), np.float32([bias])) for weight, bias in pairs])
    model, x = amp.prepare(model), amp.to_native(np.float32([[1 + last]]), dtype)
    for enabled in (True, False):
        with amp.inference(model), amp.autocast(enabled=enabled):
            assert float(np.ravel(amp.to_numpy(model(x)))[0]) == 0.0


def test_a_region_of_a_policy_that_does_not_run_is_refused(harness):
    """As a session of it is, and the region around it goes on."""
    unsupported = [policy for policy, support in harness.capabilities().policies.items() if not support]
    amp = session(harness)
    before = settled_state(harness)
    for policy in unsupported:
        with amp.autocast():
            inside = harness.global_state()
            with pytest.raises((ua.PolicyError, ua.UnsupportedError)):
                amp.autocast(policy=policy).__enter__()
            assert harness.global_state() == inside
        assert harness.global_state() == before


@pytest.mark.needs("op_overrides")
@pytest.mark.parametrize("own", ["float32", "mixed_bfloat16"])
def test_overrides_that_no_session_has_act_in_a_region(harness, own):
    """Of a policy that is the region's alone, again and again, and not around it."""
    if not harness.overrides_reach_run_op:
        pytest.skip("declared: op overrides act on the layers of prepared models alone")
    settled_state(harness)  # other sessions might have the same
    op, amp = harness.low_precision_op, session(harness, policy=own)
    kept = MIXED.replace(op_overrides={op: "float32"})
    seen = []
    try:
        for _ in range(2):
            for policy in (kept, MIXED):
                with amp.autocast(policy=policy.replace(emulate=amp.policy.emulate)):
                    seen.append(harness.run_op(op))
    except (ua.UnsupportedError, ua.PolicyNotSupportedError) as refusal:
        pytest.skip(f"refused: {refusal}")
    assert seen == ["float32", "bfloat16"] * 2
    assert harness.run_op(op) == "float32"


@pytest.mark.needs("op_overrides")
@pytest.mark.parametrize("first", ["float32", "bfloat16"])
@pytest.mark.parametrize("second", ["float32", "bfloat16"])
def test_the_widest_of_two_dtypes(harness, first, second):
    """In whatever order the inputs come."""
    op = harness.low_precision_op
    try:
        amp = session(harness, policy=MIXED.replace(op_overrides={op: "widest"}))
    except (ua.UnsupportedError, ua.PolicyNotSupportedError) as refusal:
        pytest.skip(f"refused: {refusal}")
    with amp.autocast():
        found = harness.run_op_on(op, (first, second))
    assert found == ("bfloat16" if first == second == "bfloat16" else "float32")


@pytest.mark.parametrize("inner", ["mixed_float16", "mixed_bfloat16", "float32"])
def test_a_model_inside_regions_of_two_policies(harness, inner):
    """What a layer keeps of its weights in one region is not used in another."""
    amp = session(harness, "eager", MIXED)
    model = prepared(amp, harness)
    x = amp.to_native(batch())
    try:
        with amp.autocast(policy=inner):
            expected = amp.to_numpy(model(x))
        with amp.autocast():
            outside = amp.to_numpy(model(x))
            with amp.autocast(policy=inner):
                within = amp.to_numpy(model(x))
            again = amp.to_numpy(model(x))
    except (ua.UnsupportedError, ua.PolicyNotSupportedError) as refused:
        pytest.skip(f"refused: {refused}")
    np.testing.assert_array_equal(within, expected)
    np.testing.assert_array_equal(again, outside)


@pytest.mark.needs("float8", "emulation")
@pytest.mark.parametrize("own", ["mixed_bfloat16", "tensorwise", "delayed"])
@pytest.mark.parametrize("recipe", ["tensorwise", "delayed"])
def test_a_region_of_float8_computes_by_its_own_recipe_or_is_refused(harness, form, recipe, own):
    """Whatever layers were made ready for: histories of another recipe are not used for it, and nothing else is."""

    def answer(policy, region=None):
        amp = session(harness, form, policy)
        with amp.scope():
            model = harness.mlp([(np.tile(w, (2, 2)), np.tile(b, 2)) for w, b in layers()])
        model = amp.prepare(model)
        call, x = compiled(amp, form, lambda x: model(x)), amp.to_native(np.tile(batch(), (4, 2)) / 3)
        with amp.inference(model), amp.autocast(policy=region):
            return np.asarray(amp.to_numpy(call(x)), np.float64)

    def float8(recipe):
        return ua.Policy(compute_dtype="float8", recipe=recipe, emulate=True)

    try:
        found = answer(MIXED.replace(emulate=True) if own == "mixed_bfloat16" else float8(own), float8(recipe))
    except ua.PolicyNotSupportedError as refusal:
        pytest.skip(str(refusal))
    except ua.UnsupportedError as refusal:
        if own == recipe or "float8" not in str(refusal):
            raise
    else:
        np.testing.assert_allclose(found, answer(float8(recipe)), rtol=1e-6, atol=1e-6)
