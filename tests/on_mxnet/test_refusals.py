"""What MXNet users get wrong, and what they are told."""

import numpy as np
import pytest
from trainers import batch, sgd

import unifiedamp as ua
from unifiedamp_mxnet.mxnet_api import cast, gluon, mx


@pytest.fixture
def amp():
    return ua.Amp("mxnet", "float32", loss_scale=8.0)


def test_an_optimizer_where_a_trainer_is_wanted(amp, net):
    with pytest.raises(ua.WrongObjectError, match=r"expected gluon\.Trainer, got mx\.optimizer\.\w*SGD.*Trainer"):
        amp.prepare(net(), mx.optimizer.SGD())


def test_a_list_of_trainers(amp, net):
    model = net()
    with pytest.raises(ua.WrongObjectError, match=r"got list; .*one by one"):
        amp.prepare(model, [sgd(model)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_parameters(amp, net, dtype, monkeypatch):
    model = net()
    for param in model.collect_params().values():
        monkeypatch.setattr(param, "_dtype", dtype)
    with pytest.raises(ua.ParamDtypeError, match=rf"4 trainable parameters are {dtype} \('0\.weight'"):
        amp.prepare(model)


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", "float32;layers=0:bfloat16", "bfloat16;update=stochastic;emulate=true"]
)
def test_float64_parameters_where_16_bits_compute(net, policy):
    model = net()
    model.cast("float64")
    with pytest.raises(ua.ParamDtypeError, match=r"4 trainable parameters are float64 .*call model.cast\('float32'\)"):
        ua.Amp("mxnet", policy).prepare(model)


def test_parameters_of_another_model(amp, net):
    with pytest.raises(ua.PrepareError, match="4 parameters that are in none of the prepared models"):
        amp.prepare(net(), sgd(net()))


def test_a_refused_call_prepares_nothing(amp, net):
    model = net()
    before = dict(vars(model))
    with pytest.raises(ua.PrepareError):
        amp.prepare(model, sgd(net()))
    assert dict(vars(model)) == before


def test_a_model_that_moves_to_another_context_after_it_was_prepared(net, array):
    amp, model = ua.Amp("mxnet", "float32"), net()
    model, trainer = amp.prepare(model, sgd(model))
    move = getattr(model.collect_params(), "reset_ctx", None) or model.reset_device
    move(mx.cpu(1))
    with pytest.raises(ua.PrepareError, match=r"is on cpu\(1\) now; it was on cpu\(0\).*call reset_\w+ before"):
        amp.autocast()
    move(mx.cpu(0))
    amp.backward(lambda: model(array(batch())).mean(), trainer)
    assert amp.step(trainer).applied


def test_losses_that_cannot_be_differentiated(amp, net, array):
    model = net()
    trainer = sgd(model)
    amp.prepare(model, trainer)
    with amp.autocast():
        output = model(array(batch()))
    with pytest.raises(ua.LossError, match=r"scalar, got shape \(6, 4\)"):
        amp.scale_loss(output, trainer)
    with pytest.raises(ua.LossError, match="got float"):
        amp.scale_loss(1.5, trainer)
    with pytest.raises(ua.LossError, match="not connected"), amp.scale_loss(array([1.0]), trainer) as scaled:
        scaled.backward()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_number_is_a_scalar_whatever_its_shape(amp, net, array, shape):
    model = net()
    trainer = sgd(model)
    amp.prepare(model, trainer)
    with amp.autocast():
        loss = model(array(batch())).sum()
        loss = loss.reshape(shape) if shape or loss.shape == () else loss
    with amp.scale_loss(loss, trainer) as scaled:
        assert float(scaled.value.asnumpy().reshape(())) == pytest.approx(8 * float(loss.asnumpy().reshape(())))
        scaled.backward()
    assert amp.step(trainer).applied


def test_a_low_precision_loss_is_scaled_in_float32(net, array):
    amp = ua.Amp("mxnet", "mixed_bfloat16", loss_scale=2.0**20)
    model = net()
    trainer = sgd(model)
    amp.prepare(model, trainer)
    with amp.autocast():
        loss = cast(model(array(batch())).sum().reshape((1,)), "bfloat16")
    with amp.scale_loss(loss, trainer) as scaled:
        assert scaled.value.dtype == np.float32
        scaled.backward()
    amp.unscale(trainer)
    assert np.allclose(amp.gradients(trainer)["1.bias"].asnumpy(), 6.0, rtol=0.01)


def test_options_are_checked():
    with pytest.raises(ua.ConfigError, match="did you mean 'static_alloc'"):
        ua.Amp("mxnet", "float32", backend_options={"mxnet": {"static_aloc": True}})
    with pytest.raises(ua.ConfigError, match="device 'tpu'"):
        ua.Amp("mxnet", "float32", device="tpu")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("static_alloc", "x", "true or false"),
        ("static_shape", 1, "true or false"),
        ("layout_optimization", None, "true or false"),
        ("inline_limit", "2", "a whole number"),
        ("inline_limit", True, "a whole number"),
        ("forward_bulk_size", -1, "a whole number"),
        ("backward_bulk_size", 1.5, "a whole number"),
    ],
)
def test_the_types_of_options_are_checked(name, value, wanted):
    with pytest.raises(ua.ConfigError, match=rf"backend_options\.mxnet\.{name} must be {wanted}.*got {value!r}"):
        ua.Amp("mxnet", "float32", backend_options={"mxnet": {name: value}})


def test_options_reach_hybridize(net):
    amp = ua.Amp("mxnet", "float32", backend_options={"mxnet": {"static_shape": False, "inline_limit": 5}})
    model = amp.compile(amp.prepare(net()))
    flags = dict(model._flags)
    assert (flags["static_alloc"], flags["static_shape"], flags["inline_limit"]) == (True, False, 5)


def test_compiling_hybridizes_what_it_can_and_says_what_it_cannot(net):
    amp = ua.Amp("mxnet", "float32")
    model = gluon.nn.Sequential()
    model.add(net(), net(seed=2))
    amp.prepare(model)
    with pytest.warns(ua.errors.PolicyWarning, match="no HybridBlocks"):
        amp.compile(lambda: None)
    assert all(model[i]._active for i in range(2))


def test_a_model_prepared_after_a_step_was_compiled_is_hybridized(net):
    amp = ua.Amp("mxnet", "float32")
    before, after = net(), net(seed=2)
    amp.prepare(before)
    assert not before._active
    amp.compile(lambda: None)
    amp.prepare(after)
    assert before._active
    assert after._active


def test_compiling_keeps_the_users_own_settings(net):
    amp = ua.Amp("mxnet", "float32")
    model = net()
    model.hybridize(static_alloc=False)
    amp.compile(amp.prepare(model))
    assert dict(model._flags)["static_alloc"] is False


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_a_symbol_block_is_told_apart(net, array, tmp_path):
    model = net()
    model.hybridize()
    model(array(batch()))
    model.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    loaded = gluon.SymbolBlock.imports(*files)
    amp = ua.Amp("mxnet", "mixed_bfloat16")
    with pytest.warns(ua.errors.PolicyWarning, match="keeps the precision its graph was saved with"):
        amp.prepare(loaded)
    expected = model(array(batch())).asnumpy()
    with amp.inference():
        assert np.array_equal(loaded(array(batch())).asnumpy(), expected)


@pytest.mark.parametrize("kind", ["rmsprop", "adagrad"])
def test_moments_of_an_optimizer_that_is_not_known(net, array, kind):
    amp = ua.Amp("mxnet", "bfloat16;update=stochastic;emulate=true", loss_scale="none")
    model = net()
    model, trainer = amp.prepare(model, gluon.Trainer(model.collect_params(), kind, {"learning_rate": 0.1}))
    x = array(batch())
    amp.backward(lambda: model(x).sum(), trainer)
    assert amp.step(trainer).applied
    with pytest.raises(ua.UnsupportedError, match=r"moments of this \w+ are not known; .* SGD, Adam are"):
        amp.state_dict(moments=True)
