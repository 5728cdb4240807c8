"""Float32 master weights on Keras 2 and 3: against float64 numpy, in loops and in ``fit``, saved and loaded."""

import numpy as np
import pytest
import tensorflow as tf

import unifiedamp as ua

keras = tf.keras
SCALE = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)
START = np.array([[1.0], [-2.0], [0.5], [0.25]], np.float32)
OPTIMIZERS = {
    "sgd": lambda lr: keras.optimizers.SGD(lr),
    "momentum": lambda lr: keras.optimizers.SGD(lr, momentum=0.9),
    "adam": lambda lr: keras.optimizers.Adam(lr),
}


def prepared(kind="sgd", policy="float16", lr=2.0**-12, start=START, **options):
    amp = ua.Amp("tensorflow", policy, device="cpu", **{"master_weights": True, "loss_scale": SCALE} | options)
    with amp.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, name="dense")])
        model.set_weights([start])
    return amp, *amp.prepare(model, OPTIMIZERS[kind](lr))


def feed(amp, model, optimizer, gradient, form="eager"):
    def step(x):
        with amp.autocast():
            loss = tf.reduce_sum(tf.cast(model(x), tf.float32))
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)

    run = step if form == "eager" else amp.compile(step, mode="max" if form == "xla" else "default")
    run(tf.constant(np.asarray(gradient, np.float32).reshape(1, 4)))


def master(amp, model):
    (value,) = amp.master_weights(model).values()
    return value


def gradients(steps=10, seed=0):
    """Numbers that both 16-bit formats hold, so that no cast of a gradient rounds."""
    return np.random.default_rng(seed).integers(-64, 65, size=(steps, 4)) / 64.0


@pytest.mark.parametrize(
    ("momentum", "policy", "form"),
    [(0.0, "float16", "eager"), (0.9, "bfloat16", "eager"), (0.9, "float16", "compiled"), (0.9, "bfloat16", "xla")],
)
def test_weights_follow_the_float32_master(policy, form, momentum):
    """Oracle: SGD in float64 numpy; one step is below what either format holds."""
    lr = 2.0**-12
    amp, model, optimizer = prepared("momentum" if momentum else "sgd", policy, lr)
    expected, velocity = START.astype(np.float64), 0.0
    for gradient in gradients(8):
        feed(amp, model, optimizer, gradient, form)
        velocity = momentum * velocity - lr * gradient.reshape(4, 1)
        expected = expected + velocity
        np.testing.assert_allclose(master(amp, model), expected, rtol=3e-7, atol=1e-7)
    (low,) = model.trainable_variables
    assert low.dtype == policy
    assert np.array_equal(tf.cast(master(amp, model), policy).numpy(), tf.convert_to_tensor(low).numpy())


@pytest.mark.parametrize(("kind", "form"), [("momentum", "eager"), ("adam", "compiled")])
def test_a_skipped_step_leaves_masters_and_slots_alone(kind, form):
    amp, model, optimizer = prepared(kind)
    feed(amp, model, optimizer, gradients()[0], form)
    before, slots = master(amp, model), numbers(optimizer)
    feed(amp, model, optimizer, [1.0, np.inf, 1.0, 1.0], form)
    assert np.array_equal(master(amp, model), before)
    assert all(np.array_equal(one, other) for one, other in zip(numbers(optimizer), slots, strict=True))
    assert (amp.applied_steps, amp.skipped_steps, amp.loss_scale) == (1, 1, 2.0)
    feed(amp, model, optimizer, gradients()[1], form)
    assert not np.array_equal(master(amp, model), before)


def numbers(optimizer):
    inner = optimizer.inner_optimizer
    variables = inner.variables() if callable(inner.variables) else inner.variables
    return [np.array(variable) for variable in variables]


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_masters_are_variables_of_the_optimizer_and_a_resumed_training_is_the_same(kind):
    rows = gradients(8)
    straight, first, second = prepared(kind), prepared(kind), prepared(kind, start=START * 7)
    for row in rows:
        feed(*straight, row)
    for row in rows[:4]:
        feed(*first, row)
    assert any(np.array_equal(value, master(*first[:2])) for value in numbers(first[2]))
    second[1].set_weights(first[1].get_weights())
    for target, value in zip(variables_of(second[2]), numbers(first[2]), strict=True):
        target.assign(value)
    second[0].load_state_dict(first[0].state_dict())
    assert np.array_equal(master(*second[:2]), master(*first[:2]))
    for row in rows[4:]:
        feed(*second, row)
    assert np.array_equal(master(*second[:2]), master(*straight[:2]))
    assert second[0].state_dict()["state"] == straight[0].state_dict()["state"]


def variables_of(optimizer):
    inner = optimizer.inner_optimizer
    return inner.variables() if callable(inner.variables) else inner.variables


def test_a_tf_checkpoint_holds_the_masters(tmp_path):
    first, second = prepared("adam"), prepared("adam", start=START * 7)
    for row in gradients(3):
        feed(*first, row)
    path = tf.train.Checkpoint(optimizer=first[2].inner_optimizer, model=first[1]).write(str(tmp_path / "run"))
    tf.train.Checkpoint(optimizer=second[2].inner_optimizer, model=second[1]).read(path).expect_partial()
    assert np.array_equal(master(*second[:2]), master(*first[:2]))


@pytest.mark.parametrize(("policy", "scale"), [("float16", SCALE), ("bfloat16", None)])
def test_fit_trains_the_masters(policy, scale):
    """Updates of 2**-12 add up over batches, with a loss scale and without one."""
    amp, model, optimizer = prepared(policy=policy, loss_scale=scale, start=np.ones((4, 1), np.float32))
    model.compile(optimizer, loss=lambda y, output: tf.reduce_sum(tf.cast(output, tf.float32)))
    model.fit(np.ones((6, 4), np.float32), np.zeros((6, 1), np.float32), batch_size=1, epochs=1, verbose=0)
    assert master(amp, model).tolist() == [[1.0 - 6 * 2.0**-12]] * 4
    assert amp.applied_steps == 6


def test_without_a_scale_nothing_is_looked_at():
    amp, model, optimizer = prepared(policy="bfloat16", loss_scale=None)
    feed(amp, model, optimizer, gradients()[0])
    assert (amp.loss_scale, amp.applied_steps) == (1.0, 1)
    assert not np.array_equal(master(amp, model), START)


def test_an_optimizer_built_over_16_bit_variables_is_refused():
    amp = ua.Amp("tensorflow", "bfloat16", device="cpu", master_weights=True)
    with amp.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    with pytest.raises(ua.PrepareError, match="leave building it to"):
        amp.prepare(model, optimizer)


def test_layers_in_float32_are_their_own_masters():
    amp = ua.Amp("tensorflow", "float16", device="cpu", master_weights=True, loss_scale=SCALE)
    with amp.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(3),
                keras.layers.LayerNormalization(dtype="float32"),
                keras.layers.Dense(1),
            ]
        )
    model, optimizer = amp.prepare(model, keras.optimizers.SGD(0.1))
    before = model.get_weights()
    assert sum(v.dtype == "float16" for v in model.trainable_variables) == 4
    assert len(optimizer.inner_optimizer._amp_masters) == 4
    feed(amp, model, optimizer, gradients()[0])
    assert amp.applied_steps == 1
    gains, after = [i for i, v in enumerate(before) if v.dtype == np.float32], model.get_weights()
    assert all(after[i].dtype == np.float32 and not np.array_equal(after[i], before[i]) for i in gains[1:])


def test_the_plan_tells():
    amp = ua.Amp("tensorflow", "bfloat16", device="cpu", master_weights=True)
    assert amp.explain().row("master_weights").value == "float32"
    assert amp.capabilities.feature("master_weights")
