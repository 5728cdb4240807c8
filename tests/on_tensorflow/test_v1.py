"""Session training through TensorFlow's v1 graph rewrite, under the reference transition."""

import math
from dataclasses import replace

import numpy as np
import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import needs_bfloat16_pass  # noqa: E402

v1 = tf.compat.v1
rewrite = pytest.importorskip("unifiedamp_tensorflow.training.session_rewrite")

SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3, min_scale=2.0, max_scale=8.0)


def canonical(gradients, scale, policy="mixed_float16", **options):
    """Train w = 1 by SGD 0.1 on these gradients; return weights and states."""
    with tf.Graph().as_default(), rewrite.SessionRewrite(policy, scale, **options) as path:
        x = v1.placeholder(tf.float32, ())
        w = v1.get_variable("w", initializer=1.0)
        train = path.prepare(v1.train.GradientDescentOptimizer(0.1)).minimize(w * x)
        with v1.Session(config=path.session_config()) as session:
            session.run(v1.global_variables_initializer())
            rows = []
            for gradient in gradients:
                session.run(train, {x: gradient})
                rows.append((float(session.run(w)), path.read_state(session)))
    return [row[0] for row in rows], [row[1] for row in rows]


@pytest.mark.parametrize(("policy", "options"), [("mixed_float16", {"force": True}), ("mixed_bfloat16", {})])
def test_canonical_trace(policy, options):
    gradients = (1.0, 1.0, 1.0, math.inf, 1.0, 1.0, 1.0)
    weights, states = canonical(gradients, SCALE, policy, **options)
    assert weights == pytest.approx([0.9, 0.8, 0.7, 0.7, 0.6, 0.5, 0.4], abs=1e-6)
    assert [state.scale for state in states] == [4.0, 4.0, 8.0, 4.0, 4.0, 4.0, 8.0]
    assert [state.good_steps for state in states] == [1, 2, 0, 0, 1, 2, 0]
    assert [state.applied_steps for state in states] == [1, 2, 3, 3, 4, 5, 6]


@pytest.mark.parametrize("reset", ["good_step", "growth"])
def test_every_step_is_the_reference_transition(reset):
    """Floor, ceiling and hysteresis, which TensorFlow's own scale object lacks."""
    setting = ua.DynamicLossScale(initial_scale=4.0, growth_interval=2, hysteresis=2, min_scale=1.0, max_scale=16.0)
    setting = replace(setting, hysteresis_reset=reset)
    rng = np.random.default_rng(0)
    gradients = [math.nan if bad else 1.0 for bad in rng.random(60) < 0.4]
    _, states = canonical(gradients, setting, force=True)
    state = setting.initial_state()
    for gradient, found in zip(gradients, states, strict=True):
        state = setting.next_state(state, math.isnan(gradient))
        assert (found.scale, found.good_steps, found.bad_steps) == (state.scale, state.good_steps, state.bad_steps)
        assert found.hysteresis_steps == state.hysteresis_steps
    assert states[-1].skipped_steps == sum(map(math.isnan, gradients))


@needs_bfloat16_pass
def test_a_session_computes_in_bfloat16():
    with tf.Graph().as_default(), rewrite.SessionRewrite("mixed_bfloat16") as path:
        x = v1.placeholder(tf.float32, (32, 64))
        w = v1.get_variable("w", (64, 64))
        loss = tf.reduce_mean(tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(x, w)), w)) ** 2)
        train = path.prepare(v1.train.GradientDescentOptimizer(0.1)).minimize(loss)
        metadata, run = v1.RunMetadata(), v1.RunOptions(output_partition_graphs=True)
        with v1.Session(config=path.session_config()) as session:
            session.run(v1.global_variables_initializer())
            before = session.run(loss, {x: np.ones((32, 64))})
            session.run(train, {x: np.ones((32, 64))}, options=run, run_metadata=metadata)
            assert session.run(loss, {x: np.ones((32, 64))}) < before
    products = [node for graph in metadata.partition_graphs for node in graph.node if "MatMul" in node.op]
    assert products
    assert any(node.attr["T"].type == tf.bfloat16.as_datatype_enum for node in products)


def test_the_switch_is_put_back_also_by_an_exception():
    before = tf.config.optimizer.get_experimental_options()
    with pytest.raises(KeyError), tf.Graph().as_default(), rewrite.SessionRewrite("mixed_float16", force=True) as path:
        path.prepare(v1.train.GradientDescentOptimizer(0.1))
        assert tf.config.optimizer.get_experimental_options()["auto_mixed_precision"]
        raise KeyError
    assert tf.config.optimizer.get_experimental_options() == before


def test_refusals():
    with pytest.raises(ua.PolicyNotSupportedError, match="needs a GPU"):
        rewrite.SessionRewrite("mixed_float16")
    with tf.Graph().as_default(), rewrite.SessionRewrite("mixed_bfloat16", SCALE) as path:
        with pytest.raises(ua.WrongObjectError, match=r"tf\.compat\.v1\.train\.Optimizer"):
            path.prepare(tf.keras.optimizers.SGD(0.1))
        path.prepare(v1.train.GradientDescentOptimizer(0.1))
        with pytest.raises(ua.PrepareError, match="one optimizer"):
            path.prepare(v1.train.GradientDescentOptimizer(0.1))


def test_a_tensorflow_without_the_path(monkeypatch):
    monkeypatch.delattr(v1.mixed_precision, "enable_mixed_precision_graph_rewrite")
    with pytest.raises(ua.UnsupportedError, match="graph_rewrite"):
        rewrite.SessionRewrite("mixed_float16", force=True)


def test_a_keras_policy_is_refused():
    found = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        with (
            tf.Graph().as_default(),
            rewrite.SessionRewrite("mixed_float16", force=True) as path,
            pytest.raises(ua.PrepareError, match="Keras"),
        ):
            path.prepare(v1.train.GradientDescentOptimizer(0.1))
    finally:
        tf.keras.mixed_precision.set_global_policy(found)
