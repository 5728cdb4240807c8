"""``mode="keras"``: which layers compute in what, in regions and out of them."""

import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import SCALES_LOSS, Spy, batch, keras, mean_square, mlp, prepared  # noqa: E402


def spied():
    """A dense layer whose output is spied on."""
    spy = Spy(name="spy")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="dense"), spy])
    spy.seen.clear()
    return model


def computed(model):
    return model.get_layer("spy").seen[-1][0]


def test_regions_act_on_layers_called_in_them():
    amp, model, _ = prepared(make=spied)
    x, _ = batch()
    with amp.autocast():
        assert model(x).dtype == tf.float32
        assert computed(model) == "bfloat16"
        with amp.autocast(enabled=False):
            model(x)
            assert computed(model) == "float32"
            with amp.autocast(policy="mixed_float16"):
                model(x)
                assert computed(model) == "float16"
        model(x)
        assert computed(model) == "bfloat16"
    model(x)
    assert computed(model) == "bfloat16", "outside regions a Keras layer follows its own policy"


def test_a_region_without_autocast_trains():
    amp, model, optimizer = prepared()
    x, y = batch()
    before = model.get_weights()
    with amp.autocast(enabled=False):
        loss = mean_square(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    amp.step(optimizer)
    assert all((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))


def test_a_float32_model_in_a_mixed_region():
    amp, model, _ = prepared("float32", spied)
    x, _ = batch()
    if SCALES_LOSS:
        with amp.autocast(policy="mixed_bfloat16"):
            model(x)
        assert computed(model) == "bfloat16"
    else:
        with pytest.raises(ua.UnsupportedError, match="in the scope of a session with a mixed policy"):
            amp.autocast(policy="mixed_bfloat16")


def test_region_overrides_are_refused():
    amp, _, _ = prepared()
    with pytest.raises(ua.UnsupportedError, match="compute dtype"):
        amp.autocast(policy=ua.Policy.parse("mixed_float16").replace(layer_overrides={"out": "float32"}))
    with pytest.raises(ua.UnsupportedError, match="compute dtype"):
        amp.autocast(policy="bfloat16")


def test_training_is_the_default_in_regions_only():
    amp, model, _ = prepared(make=spied)
    spy, (x, _) = model.get_layer("spy"), batch()
    model(x)
    with amp.autocast():
        model(x)
        model(x, training=False)
        with amp.inference():
            model(x)
            model(x, training=True)
    with amp.inference():
        model(x)
    flags = [bool(training) for _, training in spy.seen]
    assert flags == [False, True, False, False, True, False]


@pytest.mark.skipif(SCALES_LOSS, reason="Keras 3 takes it by its name alone")
@pytest.mark.parametrize("flag", [True, False])
def test_a_flag_that_is_given_by_position_decides(flag):
    """In regions of either kind, as ``training=`` does."""
    dense = keras.layers.Dense(4, kernel_initializer="ones")
    model = keras.Sequential([keras.layers.Input((4,)), dense, keras.layers.Dropout(0.5)])
    amp = ua.Amp("tensorflow", "float32")
    model = amp.prepare(model)
    x = tf.ones((64, 4))
    for region in (amp.autocast(), amp.inference(model)):
        with region:
            assert bool(tf.reduce_any(model(x, flag) == 0.0)) == flag


def test_inference_records_nothing():
    amp, model, optimizer = prepared(loss_scale=4.0)
    x, y = batch()
    with amp.autocast(), amp.inference(model):
        loss = mean_square(model(x), y)
    with (
        pytest.raises(ua.LossError, match="depends on no trainable variable"),
        amp.scale_loss(loss, optimizer) as scaled,
    ):
        scaled.backward()


def test_a_model_made_outside_the_scope():
    amp = ua.Amp("tensorflow", "mixed_bfloat16")
    model = spied()
    if SCALES_LOSS:
        model, _ = amp.prepare(model, keras.optimizers.SGD(0.1))
        model(batch()[0])
        assert computed(model) == "bfloat16"
        amp.close()
        model(batch()[0])
        assert computed(model) == "float32"
    else:
        with pytest.raises(ua.PrepareError, match=r"make the model inside 'with amp\.scope\(\):'"):
            amp.prepare(model, keras.optimizers.SGD(0.1))
        assert type(model) is keras.Sequential


def test_a_layer_with_a_dtype_of_its_own_keeps_it():
    amp, model, _ = prepared(make=lambda: mlp(dtype="float32"))
    assert model.get_layer("hidden").compute_dtype == "float32"
    assert model.get_layer("out").compute_dtype == "bfloat16"
    with amp.autocast():
        assert model.get_layer("hidden").compute_dtype == "float32"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"layer_overrides": {"out": "float32"}}, ("bfloat16", "float32")),
        ({"layer_overrides": {"*": "float16"}}, ("float16", "float16")),
        ({"op_overrides": {"linear": "float32"}}, ("float32", "float32")),
        ({"op_overrides": {"conv": "float32"}}, ("bfloat16", "bfloat16")),
    ],
)
def test_overrides_become_layer_policies(overrides, expected):
    policy = ua.Policy.parse("mixed_bfloat16").replace(**overrides)
    amp, model, _ = prepared(policy)
    assert tuple(model.get_layer(name).compute_dtype for name in ("hidden", "out")) == expected
    with amp.autocast():
        assert model(batch()[0]).dtype == tf.float32


def test_an_operation_is_that_of_subclasses_too():
    class Own(keras.layers.Dense):
        """A layer of the user's."""

    amp = ua.Amp("tensorflow", ua.Policy.parse("mixed_bfloat16").replace(op_overrides={"linear": "float32"}))
    with amp.scope():
        model = keras.Sequential([keras.Input((4,)), Own(2, name="own")])
    amp.prepare(model)
    assert model.get_layer("own").compute_dtype == "float32"


@pytest.mark.parametrize(("op", "choice"), [("softmax", "float32"), ("linear", "widest"), ("exp", "compute")])
def test_an_operation_that_is_no_layer_is_refused_by_name(op, choice):
    policy = ua.Policy.parse("mixed_bfloat16").replace(op_overrides={op: choice})
    with pytest.raises(ua.UnsupportedError, match=f"op_overrides.{op}"):
        ua.Amp("tensorflow", policy)


@pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_pure_policies(dtype):
    amp, model, optimizer = prepared(dtype)
    x, y = batch()
    losses = []
    for _ in range(5):
        loss = amp.backward(lambda: mean_square(model(x), tf.cast(y, dtype)), optimizer)
        amp.step(optimizer)
        losses.append(float(loss))
    assert model.get_layer("out").kernel.dtype in (dtype, tf.as_dtype(dtype))
    assert loss.dtype == tf.as_dtype(dtype)
    assert losses[-1] < losses[0]


def test_pure_with_norms_kept_in_float32():
    """Keras 2 keeps their parameters in float32 by itself; in Keras 3 they must be made so."""

    def make(**options):
        norm = keras.layers.BatchNormalization(name="norm", **options)
        return keras.Sequential([keras.Input((4,)), norm, keras.layers.Dense(2)])

    policy = ua.Policy.parse("bfloat16").replace(keep_norm_float32=True)
    if SCALES_LOSS:
        with pytest.raises(ua.PrepareError, match="layer 'norm' has bfloat16 variables"):
            prepared(policy, make)
    amp, model, _ = prepared(policy, lambda: make(dtype="float32"))
    assert model.get_layer("norm").compute_dtype == "float32"
    with amp.autocast():
        assert model(batch()[0]).dtype == tf.bfloat16


@pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning")
def test_parameters_in_half_precision_under_a_scaler():
    amp = ua.Amp("tensorflow", "mixed_float16", loss_scale=4.0)
    with ua.Amp("tensorflow", "float16").scope():
        model = mlp()
    with pytest.raises(ua.ParamDtypeError, match=r"4 trainable parameters are float16 \('hidden.kernel'"):
        amp.prepare(model, keras.optimizers.SGD(0.1))


def test_a_policy_that_keras_has_not():
    with pytest.raises(ua.PolicyNotSupportedError, match="nearest"):
        ua.Amp("tensorflow", ua.Policy("bfloat16", "float32", "float32"))


def test_float16_on_cpu_warns_and_strict_refuses():
    with pytest.warns(ua.PolicyWarning, match="without gain"):
        ua.Amp("tensorflow", "mixed_float16", device="cpu")
    with pytest.raises(ua.PolicyNotSupportedError, match="without gain"):
        ua.Amp("tensorflow", "mixed_float16", device="cpu", strict=True)


def test_close_gives_classes_back():
    amp, model, _ = prepared()
    hidden = model.get_layer("hidden")
    assert type(hidden) is not keras.layers.Dense
    assert hidden.__class__ is keras.layers.Dense
    assert keras.models.clone_model(model).get_layer("hidden").__class__ is keras.layers.Dense
    amp.close()
    assert type(hidden) is keras.layers.Dense
    assert type(model) is keras.Sequential


def test_a_model_that_makes_its_layers_itself():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(2)

        def call(self, x, training=False):
            return {"out": self.inner(x), "training": tf.constant(training)}

    def make():
        net = Net()
        net(tf.ones((1, 4)))
        return net

    amp, model, _ = prepared(make=make)
    with amp.autocast():
        found = model(batch()[0])
    assert found["out"].dtype == tf.float32
    assert bool(found["training"])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_a_model_that_returns_whole_numbers(policy):
    """They are no less whole for the policy's output dtype, at any size."""

    class Places(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return tf.argmax(self.dense(x), -1) + 2**24 + 1

    amp = ua.Amp("tensorflow", policy)
    with amp.scope():
        model = Places()
        model(tf.ones((5, 2)))
    model = amp.prepare(model)
    with amp.inference(model):
        found = model(tf.ones((5, 2)))
    assert found.dtype is tf.int64
    assert set(found.numpy().tolist()) < {2**24 + 1, 2**24 + 2, 2**24 + 3}
