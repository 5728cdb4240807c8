"""Keras code that would train wrong or stop once migrated: refused, with the true line and reason, and left alone."""

from __future__ import annotations

import pytest
from migrating import migrated

HEAD = """\
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision
"""
POLICY = 'mixed_precision.set_global_policy("mixed_float16")\n'
MODEL = "model = tf.keras.Sequential([layers.Input((6,)), layers.Dense(1)])\n"
FIT = 'model.compile("sgd", "mse")\nmodel.fit(x, y)\n'
LOOP = """\
with tf.GradientTape() as tape:
    loss = f(model(x, training=True))
    scaled = opt.get_scaled_loss(loss)
grads = opt.get_unscaled_gradients(tape.gradient(scaled, model.trainable_variables))
opt.apply_gradients(zip(grads, model.trainable_variables))
"""
OPT = "opt = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD())\n"

CASES = {
    "unbuilt": (POLICY + "model = tf.keras.Sequential([layers.Dense(1)])\n" + FIT, 4, "no variables before its first"),
    "subclassed": (
        "class Net(tf.keras.Model):\n    pass\n" + POLICY + "model = Net()\n" + FIT, 6, "no variables before its first"
    ),
    "subclassed, in a loop": (
        "class Net(tf.keras.Model):\n    pass\n" + POLICY + "model = Net()\n" + OPT + LOOP + "model(x)\n",
        6, "no variables before its first"
    ),
    "built after what it needs": (
        "class Net(tf.keras.Model):\n    pass\n" + POLICY + "model = Net()\nmodel.compile('sgd', 'mse')\n"
        "shape = (None, 3)\nmodel.build(shape)\nmodel.fit(x, y)\n", 9, "model is built after it is compiled"
    ),
    "made elsewhere": (POLICY + "def go(model):\n    model.compile('sgd', 'mse')\n", 5, "made outside this file"),
    "made in a loop's head": (
        POLICY + "def go(model):\n    model.compile('sgd', 'mse')\n    return []\nfor _ in go(tf.keras.Model(a, b)):\n"
        "    pass\n", 7, "tf.keras.Model(a, b) makes a model inside another call"
    ),
    "made in a call, before": (
        "def go(model):\n    model.compile('sgd', 'mse')\ngo(tf.keras.Model(a, b))\n" + POLICY,
        5, "model is made before the policy is set"
    ),
    "made before": (MODEL + POLICY + FIT, 3, "before the policy"),
    "compiled in a loop": (POLICY + MODEL + "for _ in range(2):\n    model.compile('sgd', 'mse')\n", 6, "in a loop"),
    "bare step": (
        POLICY + MODEL + OPT + LOOP + "def more(g):\n    opt.apply_gradients(g)\n", 12, "opt.apply_gradients() is left"
    ),
    "two policies": (
        POLICY + MODEL + FIT + 'mixed_precision.set_global_policy("mixed_bfloat16")\n', 7, "policy is set 2 times"
    ),
    "no training": (POLICY + MODEL + "model.predict(x)\nmodel.train_on_batch(x, y)\n", 3, "no model.compile in this"),
    "Keras on torch": (
        "import os\nos.environ['KERAS_BACKEND'] = 'torch' if here else 'tensorflow'\n" + POLICY + MODEL + FIT,
        4, "Keras runs on the backend 'torch' if here else 'tensorflow'"
    ),
    "Keras on JAX": ("tf.keras.config.set_backend('jax')\n" + POLICY + MODEL + FIT, 3, "on the backend 'jax'"),
    "one policy in two functions": (
        "def a():\n    " + POLICY + "def b():\n    " + POLICY, 6, "one policy is set in 2 functions (lines 4, 6)"
    ),
    "two rewrites": (
        "a = tf.train.experimental.enable_mixed_precision_graph_rewrite(one)\n"
        "b = tf.train.experimental.enable_mixed_precision_graph_rewrite(two)\nmodel.compile(a, 'mse')\n",
        4, "the graph rewrite, which is one for the whole process, is turned on 2 times"
    ),
    "applied at times": (
        POLICY + MODEL + OPT + LOOP.replace("opt.apply", "if i % 2:\n    opt.apply"), 11,
        "opt applies gradients at times"
    ),
    "unscaled and applied at times": (
        POLICY + MODEL + OPT + LOOP.replace("grads = opt.get_unscaled_gradients(tape", "grads = (tape").replace(
            "opt.apply", "if i % 2:\n    grads = opt.get_unscaled_gradients(grads)\n    opt.apply"),
        12, "opt applies gradients at times"
    ),
    "a value of elsewhere": (POLICY + MODEL + OPT + LOOP.replace("(grads,", "(found,"), 10,
                             "found, which is not computed in this function"),
    "float32 between": (
        POLICY + 'model = tf.keras.Sequential([layers.Input((6,)), layers.Dense(1)])\n'
        'mixed_precision.set_global_policy("float32")\n' + FIT, 5, "float32 is set"
    ),
    "flags that differ": (
        "def main(a, b):\n    if a:\n        " + POLICY + "    " + MODEL
        + "    opt = tf.keras.optimizers.SGD()\n    if b:\n        opt = mixed_precision.LossScaleOptimizer(opt)\n"
        "    model.compile(opt, 'mse')\n", 8, "depends on b, and AMP is turned on under a"
    ),
    "other branch": (
        POLICY + MODEL + OPT
        + LOOP.replace("    scaled = opt.get_scaled_loss(loss)\n",
                       "    if amp:\n        scaled = opt.get_scaled_loss(loss)\n    else:\n        train(loss)\n"),
        11, "does more than the same step",
    ),
    "a wrapper that scales": (
        "from accumulating import Wrapped\n" + POLICY + MODEL + "model = Wrapped(model, mixed_precision=True)\n" + FIT,
        6, "model is made with mixed_precision=True, and may scale its losses"
    ),
    "a compile of its class": (
        "from gans import Gan\n" + POLICY + "gan = Gan(discriminator=disc, generator=gen)\n"
        "d_opt = tf.keras.optimizers.Adam()\ng_opt = tf.keras.optimizers.Adam()\n"
        "gan.compile(d_opt, g_opt, loss_fn, run_eagerly=False)\ngan.fit(x)\n",
        8, "gan.compile takes g_opt, which is not"
    ),
    "a compile with other words": (
        "from gans import Gan\n" + POLICY + "gan = Gan(discriminator=disc, generator=gen)\n"
        "gan.compile(optimizer='adam', loss='mse', g_optimizer='adam')\n",
        6, "gan.compile takes g_optimizer=, which is not"
    ),
    "a compile that keeps the optimizer": (
        "class Net(tf.keras.Model):\n    def compile(self, opt, loss_fn, **more):\n        super().compile(**more)\n"
        + POLICY + "net = Net()\nnet.build((None, 3))\nopt = tf.keras.optimizers.Adam()\n"
        "net.compile(opt, loss_fn)\nnet.fit(x)\n", 4, "net's class overrides compile and passes no optimizer to "
    ),
    "a policy and another one": (
        POLICY + 'mixed_precision.set_global_policy("mixed_bfloat16")\n' + MODEL + FIT, 4, "policy is set 2 times"
    ),
    "a policy under a condition, and again": (
        "if gpus:\n    " + POLICY + POLICY + MODEL + FIT, 5, "policy is set 2 times"
    ),
    "no policy": ("def step(opt, loss):\n    return opt.get_scaled_loss(loss)\n", 4, "that sets no policy"),
    "no policy, optimizers wrapped in two functions": (
        "def first(opt):\n    return mixed_precision.LossScaleOptimizer(opt)\n\n"
        "def second(opt):\n    return mixed_precision.LossScaleOptimizer(opt)\n", 4, "that sets no policy"
    ),
    "no policy, and one of a layer": (
        "model = tf.keras.Sequential([tf.keras.layers.Dense(1, dtype='mixed_float16')])\n"
        "opt = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam())\nmodel.compile(opt, 'mse')\n"
        "model.fit(x, y)\n", 4, "that sets no policy"
    ),
    "no policy, two branches": (
        "def step(opt, tape, loss, w):\n    if hasattr(opt, 'loss_scale'):\n        g = tape.gradient("
        "opt.get_scaled_loss(loss), w)\n    else:\n        g = fused(loss, w)\n        log(g)\n    return g\n",
        5, "that sets no policy"
    ),
    "an Estimator": (
        "def model_fn(features, mode):\n    loss = net(features)\n    if mode == tf.estimator.ModeKeys.TRAIN:\n"
        "        opt = tf.compat.v1.train.AdamOptimizer()\n"
        "        opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)\n"
        "        train_op = opt.minimize(loss, global_step=tf.compat.v1.train.get_global_step())\n"
        "        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)\n",
        8, "opt.minimize() is a step of a TensorFlow 1 graph, which an Estimator runs"
    ),
    "a monitored session": (
        "opt = tf.train.GradientDescentOptimizer(0.1)\nif args.amp:\n"
        "    opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)\nop = opt.minimize(loss)\n"
        "with tf.train.MonitoredTrainingSession() as session:\n    session.run(op)\n",
        6, "which tf.train.MonitoredTrainingSession runs"
    ),
    "Horovod's optimizer": (
        "import horovod.tensorflow.keras as hvd\n" + POLICY + MODEL + "opt = tf.keras.optimizers.SGD()\n"
        "opt = hvd.DistributedOptimizer(opt)\nmodel.compile(opt, 'mse')\nmodel.fit(x, y)\n",
        7, "horovod.tensorflow.keras.DistributedOptimizer exchanges gradients by itself"
    ),
    "Horovod's tape": (
        "import horovod.tensorflow as hvd\n" + POLICY + MODEL + OPT
        + LOOP.replace("grads =", "# Horovod: the tape\ntape = hvd.DistributedGradientTape(tape)\ngrads ="),
        11, "tape = hvd.DistributedGradientTape(tape)"
    ),
    "a session's other name": (
        "def step(x, y, amp, amp_session):\n    global model\n" + LOOP.replace("\n", "\n    ").join(["    ", "\n"])
        + POLICY + MODEL + OPT + "step(x, y, 1, 2)\n", 5, "amp_session is step's own here, and not the session"
    ),
    "a policy that is made somehow": (
        "policy = mixed_precision.Policy('mixed_float16')\nif a:\n    policy = pick(policy)\n"
        "mixed_precision.set_global_policy(policy)\n" + MODEL + FIT, 6, "the policy policy"
    ),
    "set up under a condition": (
        "def setup():\n    " + POLICY + "def main():\n    if cond:\n        setup()\n    " + MODEL
        + "    model.compile('sgd', 'mse')\n", 8, "under a condition"
    ),
    "set up after an early return": (
        "def setup():\n    if no:\n        return\n    " + POLICY + "def main():\n    setup()\n    " + MODEL
        + "    model.compile('sgd', 'mse')\n", 9, "under a condition"
    ),
}  # fmt: skip


def test_a_train_step_of_a_file_without_other_words_of_mixed_precision_is_seen():
    text = (
        "class Net(Model):\n    def train_step(self, data):\n        loss = self.optimizer.get_scaled_loss(f(data))\n"
    )
    done = migrated("from keras import Model\n" + text)
    assert [(found.line, found.blocks) for found in done.findings] == [(4, True)]
    assert "sets no policy" in done.findings[0].what


@pytest.mark.parametrize("name", CASES)
def test_refused_with_its_line_and_reason(name):
    text, line, reason = CASES[name]
    done = migrated(HEAD + text)
    assert not done.changed, done.diff()
    assert any(found.line == line and reason in found.what and found.blocks for found in done.findings), done.findings


@pytest.mark.parametrize("use", ["model.predict(x)\n", "model.compile(metrics=['accuracy'])\nmodel.evaluate(data)\n"])
def test_a_policy_for_inference_alone_works_as_it_is(use):
    text = HEAD + POLICY + MODEL + "model.load_weights('saved.h5')\n" + use
    done = migrated(text)
    assert (done.status, [one.line for one in done.findings]) == ("works as it is", [3])
    assert migrated(text + "train(model)\n").refused


def test_keras_on_tensorflow_is_migrated():
    text = "import os\nos.environ.setdefault('KERAS_BACKEND', 'tensorflow')\n" + POLICY + MODEL + FIT
    assert migrated(HEAD + text).changed


def test_every_blocker_is_named_at_once():
    text = POLICY + MODEL + OPT + LOOP + "def more(g):\n    opt.apply_gradients(g)\n    opt.apply_gradients(g)\n"
    done = migrated(HEAD + text)
    assert [found.line for found in done.findings if found.blocks] == [12, 13]


def test_every_blocker_of_planning_is_named_at_once():
    odd_loop = LOOP.replace("tape.gradient(scaled, model.trainable_variables)", "edit(scaled)")
    no_optimizer = 'model.compile(loss="mse")\n'
    unbuilt = 'second = tf.keras.Sequential([layers.Dense(1)])\nsecond.compile("sgd", "mse")\n'
    two = 'mixed_precision.set_global_policy("mixed_bfloat16")\n'
    done = migrated(HEAD + POLICY + MODEL + OPT + odd_loop + no_optimizer + unbuilt + two)
    assert not done.changed
    wanted = {9: "edit(scaled)", 11: "without an optimizer", 12: "no variables before its first", 14: "set 2 times"}
    found = {found.line: found.what for found in done.findings if found.blocks}
    assert set(found) == set(wanted)
    assert all(what in found[line] for line, what in wanted.items())


def test_a_policy_without_the_flag_of_its_scaling_is_pointed_at():
    text = (
        "def main(scales):\n    " + POLICY + "    " + MODEL
        + "    opt = tf.keras.optimizers.SGD()\n    if scales:\n"
        + "        opt = mixed_precision.LossScaleOptimizer(opt)\n    model.compile(opt, 'mse')\n"
    )  # fmt: skip
    done = migrated(HEAD + text)
    assert done.changed
    (found,) = done.findings
    assert (found.line, found.blocks) == (7, False)
    assert "scales" in found.what
    assert "always scales" in found.write


BRANCHES = """\
def main(mode, fp16):
    if mode == "train":
        if fp16:
            mixed_precision.set_global_policy("mixed_float16")
        model = tf.keras.Sequential([layers.Input((6,)), layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(x, y)
    else:
        model = tf.keras.models.load_model("saved")
        model.predict(x)
"""


def test_a_branch_without_training_stays_as_it_is():
    new = migrated(HEAD + BRANCHES).after.decode()
    assert (
        '        amp = ua.Amp(\n            "tensorflow",\n            policy="mixed_float16" if fp16 else "float32",'
        in new
    )
    assert new[new.index("    else:") :] == BRANCHES[BRANCHES.index("    else:") :]


def test_a_flag_with_a_return_in_its_branch_comes_first():
    text = "def setup(fp16):\n    if fp16:\n        " + POLICY + "        return True\n    return False\n"
    text += "def main():\n    setup(True)\n    " + MODEL + "    model.compile('sgd', 'mse')\n"
    new = migrated(HEAD + text).after.decode()
    assert new.index("ua.Amp(") < new.index("if fp16:") < new.index("return True")


def test_a_global_model_that_a_function_compiles_is_refused_for_its_true_reason():
    text = POLICY + "model = None\ndef start():\n    global model\n    " + MODEL
    text += "def go():\n    global model\n    model.compile('sgd', 'mse')\n"
    done = migrated(HEAD + text)
    assert not done.changed
    assert ["each time that function is called" in found.what for found in done.findings] == [True]


def test_models_of_other_files_are_listed():
    text = "from nets import Autoencoder\n" + POLICY + "model = Autoencoder(3)\nmodel.compile('sgd', 'mse')\n"
    done = migrated(HEAD + text)
    assert done.changed
    assert ["outside this file" in found.what for found in done.findings] == [True]


def test_a_layer_of_another_file_is_made_in_the_scope_with_the_model_that_it_goes_into():
    text = (
        "import blocks\n" + POLICY + "encoder = blocks.Encoder(32)\nrows = 3\n" + MODEL + "model.add(encoder)\n" + FIT
    )
    new = migrated(HEAD + text).after.decode()
    assert "with amp.scope():\n    encoder = blocks.Encoder(32)\n" in new


@pytest.mark.parametrize("first", ["blocks.Encoder(32)", "encoder"])
def test_a_sequential_whose_first_layer_another_file_makes_is_pointed_at(first):
    text = POLICY + f"encoder = blocks.Encoder(32)\nmodel = tf.keras.Sequential()\nmodel.add({first})\n" + FIT
    done = migrated(HEAD + "import blocks\n" + text)
    assert done.changed
    assert [(found.line, "made by blocks.Encoder, outside" in found.what) for found in done.findings] == [(6, True)]


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("    scaled = opt.get_scaled_loss(loss)\n", "    scaled = loss\n", 9, "the loss is not scaled, and opt"),
        ("opt.get_unscaled_gradients(tape.gradient(scaled, model.trainable_variables))",
         "tape.gradient(scaled, model.trainable_variables)", 10, "opt applied gradients that are still scaled"),
    ],
)  # fmt: skip
def test_a_step_that_scaled_and_unscaled_by_half_is_pointed_at(old, new, line, what):
    assert old in LOOP
    done = migrated(HEAD + POLICY + MODEL + OPT + LOOP.replace(old, new))
    assert done.changed
    assert [(found.line, what in found.what) for found in done.findings] == [(line, True)]
