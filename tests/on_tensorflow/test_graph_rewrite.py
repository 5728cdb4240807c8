"""``mode="graph_rewrite"``: what the pass does to a graph, proved from the graph, and what it is refused for."""

import os
import threading

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import needs_bfloat16_pass  # noqa: E402

keras = tf.keras

REWRITE = {"tensorflow": {"mode": "graph_rewrite"}}
MIXED = "mixed_bfloat16"


def rewriting(policy=MIXED, **options):
    return ua.Amp("tensorflow", policy, backend_options=REWRITE, **options)


def trained(amp, steps=3):
    """Train a small MLP; return its losses."""
    with amp.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(4)])
        optimizer = keras.optimizers.SGD(0.1)
    model, optimizer = amp.prepare(model, optimizer)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.3, weight.shape) for weight in model.get_weights()])
    x, y = (tf.constant(rng.normal(size=(32, n)).astype(np.float32)) for n in (8, 4))

    def step(x, y):
        loss = amp.backward(lambda: tf.reduce_mean(tf.math.squared_difference(model(x), y)), optimizer)
        amp.step(optimizer)
        return loss

    compiled = amp.compile(step)
    return [float(compiled(x, y)) for _ in range(steps)]


def process_state():
    lists = {name: value for name, value in os.environ.items() if "GRAPH_REWRITE" in name}
    return tf.config.optimizer.get_experimental_options(), lists, keras.mixed_precision.global_policy().name


@needs_bfloat16_pass
def test_the_compiled_step_computes_in_bfloat16_and_the_process_is_as_found():
    before = process_state()
    amp, plain = rewriting(), ua.Amp("tensorflow", "float32")
    losses, expected = trained(amp), trained(plain)
    assert losses == pytest.approx(expected, rel=0.02)
    assert losses != expected
    row = amp.explain().row("rewrite")
    assert row.effect == "native"
    assert "MatMul" in row.value
    assert "optimized graph" in row.native
    assert process_state() == before


@needs_bfloat16_pass
def test_explain_proves_on_a_small_graph_before_any_step():
    before = process_state()
    row = rewriting().explain().row("rewrite")
    assert row.effect == "native"
    assert "compute in bfloat16" in row.value
    assert process_state() == before


@needs_bfloat16_pass
def test_lists_from_op_overrides_reach_the_pass():
    policy = ua.Policy.parse(MIXED).replace(op_overrides={"matmul": "float32"})
    plan = rewriting(policy).explain()
    assert plan.row("rewrite").effect == "no effect"
    assert "DENYLIST_ADD=MatMul" in plan.row("op_overrides.matmul").native
    softmax = ua.Policy.parse(MIXED).replace(op_overrides={"softmax": "float32"})
    assert "Softmax" in rewriting().explain().row("rewrite").value
    assert "Softmax" not in rewriting(softmax).explain().row("rewrite").value


def test_our_loss_scale_goes_around_it():
    amp = rewriting(loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=2))
    trained(amp, steps=4)
    assert (amp.loss_scale, amp.applied_steps) == (16.0, 4)


@needs_bfloat16_pass
def test_fit_inside_the_scope_is_rewritten():
    from unifiedamp_tensorflow.internals import collect_graphs
    from unifiedamp_tensorflow.precision.rewrite_stats import RewriteStats

    amp = rewriting()
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(4)])
    model, optimizer = amp.prepare(model, keras.optimizers.SGD(0.1))
    model.compile(optimizer=optimizer, loss="mse")
    with amp.scope(), collect_graphs() as graphs:
        model.fit(np.ones((32, 8)), np.ones((32, 4)), verbose=0)
    assert RewriteStats("bfloat16").add(graphs)


def test_an_eager_step_warns_that_it_gains_nothing():
    amp = rewriting()
    model, optimizer = amp.prepare(
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
    )
    with pytest.warns(ua.PolicyWarning, match=r"amp\.compile"):
        amp.backward(lambda: tf.reduce_sum(model(tf.ones((1, 2)))), optimizer)
    amp.discard_step(optimizer)


def test_a_failing_call_puts_everything_back():
    before = process_state()
    amp = rewriting(ua.Policy.parse(MIXED).replace(op_overrides={"softmax": "float32"}))

    def fails(x):
        raise KeyError("inside")

    with pytest.raises(KeyError):
        amp.compile(fails)(tf.ones(1))
    with pytest.raises(ZeroDivisionError), amp.scope():
        raise ZeroDivisionError
    assert process_state() == before


def test_float16_on_cpu_is_refused_with_the_nearest():
    with pytest.raises(ua.PolicyNotSupportedError, match="needs a GPU.*'mixed_bfloat16'"):
        rewriting("mixed_float16")


def test_a_mixed_keras_policy_is_refused_both_ways():
    found = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(MIXED)
    try:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        with pytest.raises(ua.PrepareError, match="Keras policy 'mixed_bfloat16' is active"), rewriting().scope():
            pass
        with pytest.raises(ua.PrepareError, match="is active"):
            rewriting().prepare(model)
    finally:
        keras.mixed_precision.set_global_policy(found)
    with pytest.raises(ua.PrepareError, match="needs float32 layers"):
        rewriting().prepare(model)
    tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    try:
        with pytest.raises(ua.UnsupportedError, match="graph rewrite is on"), ua.Amp("tensorflow", MIXED).scope():
            pass
    finally:
        tf.compat.v1.mixed_precision.disable_mixed_precision_graph_rewrite()
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": None})


@pytest.mark.parametrize(
    ("policy", "options", "error", "match"),
    [
        (MIXED, {"xla": True}, ua.ConfigError, "exclude each other"),
        ("bfloat16", {}, ua.PolicyNotSupportedError, "float32 graph"),
        (MIXED + ";layers=a:float32", {}, ua.UnsupportedError, "not layers"),
        (MIXED + ";ops=layer_norm:float32", {}, ua.UnsupportedError, "layer_norm"),
        (MIXED + ";ops=matmul:float32,linear:compute", {}, ua.UnsupportedError, "MatMul"),
    ],
)
def test_what_the_pass_cannot_do_is_refused_by_name(policy, options, error, match):
    parts = dict(part.split("=", 1) for part in policy.split(";")[1:])
    policy = ua.Policy.parse(policy.split(";")[0])
    tables = {key: dict(item.split(":") for item in text.split(",")) for key, text in parts.items()}
    policy = policy.replace(layer_overrides=tables.get("layers", {}), op_overrides=tables.get("ops", {}))
    with pytest.raises(error, match=match):
        ua.Amp("tensorflow", policy, backend_options={"tensorflow": {"mode": "graph_rewrite", **options}})


def test_a_region_cannot_leave_the_graph():
    with pytest.raises(ua.UnsupportedError, match="cannot leave a region out"):
        rewriting().autocast(enabled=False)


def test_unknown_mode():
    with pytest.raises(ua.ConfigError, match="did you mean 'graph_rewrite'"):
        ua.Amp("tensorflow", MIXED, backend_options={"tensorflow": {"mode": "rewrite"}})


def test_scopes_in_two_threads_end_clean():
    before = process_state()
    amp, done = rewriting(), threading.Event()

    def other():
        with amp.scope():
            done.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert done.wait(30)
    thread.join(30)
    assert process_state() == before
