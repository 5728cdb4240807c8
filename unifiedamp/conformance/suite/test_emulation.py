"""Emulated float16: the answers of an oracle that rounds operands and results, and overflow as in the real dtype."""

import contextlib
import itertools

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, session
from unifiedamp.formats import FLOAT_FORMATS
from unifiedamp.formats.rounding import round_to

POLICY = ua.Policy.parse("mixed_float16;emulate=true")


def half(values):
    return round_to(values, FLOAT_FORMATS["float16"]).astype(np.float64)


def weights(*sizes):
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=pair).astype(np.float32), rng.normal(size=pair[1]).astype(np.float32))
        for pair in itertools.pairwise(sizes)
    ]


def prepared(harness, form, layers, **options):
    try:
        amp = session(harness, form, POLICY, **options)
    except ua.PolicyNotSupportedError as error:
        pytest.skip(str(error))
    with amp.scope():
        model = harness.mlp(layers)
        optimizer = harness.sgd([model], 0.5)
    return amp, *amp.prepare(model, optimizer)


@pytest.mark.needs("emulation")
def test_operands_and_results_are_rounded(harness, form):
    ((w0, b0), (w1, b1)) = layers = weights(24, 16, 4)
    amp, model, _ = prepared(harness, form, layers)
    x = np.random.default_rng(1).normal(size=(8, 24)).astype(np.float32)
    call = compiled(amp, form, lambda x: model(x))
    with amp.inference(model), amp.autocast():
        found = np.asarray(amp.to_numpy(call(amp.to_native(x))), np.float64)
    hidden = np.maximum(half(half(x) @ half(w0) + half(b0)), 0)
    expected = half(hidden @ half(w1) + half(b1))
    np.testing.assert_array_equal(found, half(found))
    np.testing.assert_allclose(found, expected, rtol=2**-9, atol=2**-7)
    exact = np.maximum(x.astype(np.float64) @ w0 + b0, 0) @ w1 + b1
    assert np.abs(found - exact).max() > np.abs(found - expected).max()


@pytest.mark.needs("emulation")
def test_the_gradient_of_a_result_is_rounded(harness, form):
    """It is 1 + 2**-12, which float16 has not; each parameter moves by half of 1."""
    layers = [(np.zeros((1, 1), np.float32), np.zeros(1, np.float32))]
    amp, model, optimizer = prepared(harness, form, layers, loss_scale="none")

    def step(x, y):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    x, y = np.ones((1, 1), np.float32), np.full((1, 1), -(1 + 2.0**-12) / 2, np.float32)
    compiled(amp, form, step)(amp.to_native(x), amp.to_native(y))
    assert [np.ravel(value).tolist() for value in amp.master_weights(model).values()] == [[-0.5]] * 2


@pytest.mark.needs("emulation")
def test_a_gradient_beyond_float16_skips_the_step(harness, form):
    """The scaled gradient of the output, 2**20 at least, is no float16 number; under float32 it would be one."""
    layers = [(np.ones((8, 8), np.float32), np.zeros(8, np.float32))]
    amp, model, optimizer = prepared(harness, form, layers, loss_scale=ua.DynamicLossScale(initial_scale=2.0**24))

    def train(x, y):
        amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
        amp.step(optimizer)

    before = harness.parameters(model)
    batch = [amp.to_native(np.ones((2, 8), np.float32)), amp.to_native(np.zeros((2, 8), np.float32))]
    compiled(amp, form, train)(*batch)
    assert amp.skipped_steps == 1
    for name, value in harness.parameters(model).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.needs("emulation")
def test_a_declared_emulation_runs_some_policy(harness):
    """Where float16 is refused, the tests above are skipped, so something else has to run."""
    ran = []
    for name in ("mixed_float16", "mixed_bfloat16", "mixed_float8"):
        with contextlib.suppress(ua.PolicyNotSupportedError):
            session(harness, policy=f"{name};emulate=true").close()
            ran.append(name)
    assert ran


@pytest.mark.needs("emulation", "float8")
def test_float8_is_the_emulation_of_the_backends_option(harness):
    """The text ``emulate=true`` gives what ``harness.float8_emulation`` does, which ``test_float8`` compares."""
    layers = weights(32, 16, 16)
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(16, size)).astype(np.float32) for size in (32, 16))

    def trained(policy, settings=None):
        amp = session(harness, policy=policy, settings=settings)
        with amp.scope():
            model = harness.mlp(layers)
            optimizer = harness.sgd([model], 0.5)
        model, optimizer = amp.prepare(model, optimizer)

        def train(x, y):
            amp.backward(lambda: harness.mean_square(model(x), y), optimizer)
            amp.step(optimizer)

        for _ in range(2):
            train(amp.to_native(x), amp.to_native(y))
        return list(harness.parameters(model).values())

    by_policy, by_option = trained("mixed_float8;emulate=true"), trained("mixed_float8", harness.float8_emulation)
    bfloat16 = trained("mixed_bfloat16")
    for one, other in zip(by_policy, by_option, strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(np.abs(one - other).max() > 1e-5 for one, other in zip(by_policy, bfloat16, strict=True))


@pytest.mark.needs("emulation", "op_overrides")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, "bfloat16"),
        ({"{op}": "float32"}, "float32"),
        ({"{op}": "compute"}, "bfloat16"),
        ({"exp": "float32"}, "bfloat16"),
        ({"{op}": "float32", "exp": "compute"}, "float32"),
    ],
    ids=["none", "kept", "asked for", "another", "two"],
)
def test_overrides_beside_emulation(harness, overrides, expected):
    """An operation that is overridden to float32 is not emulated; all others are."""
    if not harness.overrides_reach_run_op:
        pytest.skip("overrides act on the layers of prepared models alone")
    chosen = {name.format(op=harness.low_precision_op): dtype for name, dtype in overrides.items()}
    policy = ua.Policy.parse("mixed_bfloat16;emulate=true")
    amp = session(harness, policy=policy.replace(op_overrides=chosen))
    with amp.autocast():
        assert harness.run_op(harness.low_precision_op) == expected
    assert harness.run_op(harness.low_precision_op) == "float32"
    with session(harness, policy="float32").autocast(policy=policy.replace(op_overrides=chosen)):
        assert harness.run_op(harness.low_precision_op) == expected


@pytest.mark.needs("emulation", "op_overrides")
def test_a_layer_that_is_overridden_is_not_emulated(harness, form):
    """By its operation, in steps compiled or not: it answers as in float32."""
    x = np.random.default_rng(1).normal(size=(8, 24)).astype(np.float32)
    found = {}
    for name, policy in {"kept": POLICY.replace(op_overrides={"linear": "float32"}), "emulated": POLICY}.items():
        try:
            amp = session(harness, form, policy)
        except (ua.PolicyNotSupportedError, ua.UnsupportedError) as refusal:
            pytest.skip(f"refused: {refusal}")
        layers = weights(24, 16)
        with amp.scope():
            model = harness.mlp(layers)
        model = amp.prepare(model)
        call = compiled(amp, form, lambda x, model=model: model(x))
        with amp.inference(model), amp.autocast():
            found[name] = np.asarray(amp.to_numpy(call(amp.to_native(x))), np.float64)
    exact = x.astype(np.float64) @ layers[0][0] + layers[0][1]
    np.testing.assert_allclose(found["kept"], exact, rtol=1e-5, atol=1e-5)
    assert np.abs(found["emulated"] - exact).max() > 1e-4


@pytest.mark.needs("emulation", "op_overrides")
def test_an_operation_that_is_asked_for_in_the_compute_dtype_is_emulated(harness, form):
    """Bit for bit as without the override: the native product of this size adds in another order."""
    x = np.random.default_rng(1).normal(size=(128, 512)).astype(np.float32)
    found = []
    for policy in (POLICY, POLICY.replace(op_overrides={"linear": "compute"})):
        try:
            amp = session(harness, form, policy)
        except (ua.PolicyNotSupportedError, ua.UnsupportedError) as refusal:
            pytest.skip(f"refused: {refusal}")
        with amp.scope():
            model = harness.mlp(weights(512, 128))
        model = amp.prepare(model)
        call = compiled(amp, form, lambda x, model=model: model(x))
        with amp.inference(model), amp.autocast():
            found.append(np.asarray(amp.to_numpy(call(amp.to_native(x))), np.float32))
    np.testing.assert_array_equal(found[1], found[0])
