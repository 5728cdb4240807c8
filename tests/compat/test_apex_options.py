"""initialize: what goes in and comes out, the options and the table, and what is refused."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from apex_loops import LEVELS, backward, ready, weights  # noqa: E402

import unifiedamp as ua  # noqa: E402
from unifiedamp import errors  # noqa: E402
from unifiedamp.compat import apex as amp  # noqa: E402


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def quiet(model, optimizer=None, **options):
    return amp.initialize(model, optimizer, **{"verbosity": 0} | options)


def test_the_arguments_have_apex_order_and_defaults():
    defaults = {name: each.default for name, each in inspect.signature(amp.initialize).parameters.items()}
    assert list(defaults.items())[1:] == [
        ("optimizers", None),
        ("enabled", True),
        ("opt_level", "O1"),
        ("cast_model_type", None),
        ("patch_torch_functions", None),
        ("keep_batchnorm_fp32", None),
        ("master_weights", None),
        ("loss_scale", None),
        ("cast_model_outputs", None),
        ("num_losses", 1),
        ("verbosity", 1),
        ("min_loss_scale", None),
        ("max_loss_scale", 2.0**24),
    ]
    assert list(inspect.signature(amp.scale_loss).parameters) == [
        "loss",
        "optimizers",
        "loss_id",
        "model",
        "delay_unscale",
        "delay_overflow_check",
    ]


def test_what_comes_out_has_the_shape_of_what_went_in():
    model = weights(1.0)
    optimizer = sgd(model)
    assert quiet(model, optimizer) == (model, optimizer)
    model = weights(1.0)
    assert quiet(model) is model
    models = [weights(1.0), weights(2.0)]
    assert quiet(models) == models
    models, optimizer = [weights(1.0)], sgd(weights(1.0))
    assert quiet(models, optimizer := sgd(models[0])) == (models, optimizer)
    model = weights(1.0)
    optimizers = [sgd(model), sgd(model)]
    assert quiet(model, optimizers) == (model, optimizers)


@pytest.mark.parametrize(
    ("level", "params", "norms", "masters", "scale"),
    [
        ("O0", "float32", "float32", "float32", 1.0),
        ("O1", "float32", "float32", "float32", 65536.0),
        ("O2", "float16", "float32", "float32", 65536.0),
        ("O3", "float16", "float16", "float16", 1.0),
    ],
)
def test_what_each_level_casts(level, params, norms, masters, scale):
    seen = []
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    model, optimizer = quiet(model, sgd(model), opt_level=level)
    assert model(torch.ones(4, 2)).dtype is torch.float32
    assert [str(model[0].weight.dtype), str(model[1].weight.dtype)] == [f"torch.{params}", f"torch.{norms}"]
    assert str(next(amp.master_params(optimizer)).dtype) == f"torch.{masters}"
    assert seen == [torch.float32 if level == "O0" else torch.float16]
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == scale


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_bfloat16_in_place_of_float16(level):
    seen = []
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    model, optimizer = quiet(model, sgd(model), opt_level=level, cast_model_type=torch.bfloat16)
    backward(model, optimizer, [0.5, 0.5])
    optimizer.step()
    assert seen == [torch.bfloat16]


def test_text_is_read_as_apex_reads_it():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    quiet(model, sgd(model), opt_level="O2", keep_batchnorm_fp32="False", loss_scale="128.0")
    assert model[1].weight.dtype is torch.float16
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 128.0
    assert amp._amp_state.opt_properties.loss_scale == 128.0
    ready("O0", loss_scale="dynamic")
    assert amp._amp_state.loss_scalers[0].loss_scale() == 65536.0


def test_the_table_says_defaults_and_what_is_used(capsys):
    ready("O2", loss_scale="128.0", verbosity=1)
    lines = [[part.strip() for part in line.split(" : ")] for line in capsys.readouterr().out.splitlines()]
    assert lines[0][0].startswith("Selected optimization level O2")
    names = ["enabled", "opt_level", "cast_model_type", "patch_torch_functions", "keep_batchnorm_fp32"]
    names += ["master_weights", "loss_scale"]
    assert [line[0] for line in lines[2:9]] == [line[0] for line in lines[10:]] == names
    assert [line[1] for line in lines[2:9]] == ["True", "O2", "torch.float16", "False", "True", "True", "dynamic"]
    assert [line[1] for line in lines[10:]] == ["True", "O2", "torch.float16", "False", "True", "True", "128.0"]
    ready("O2", verbosity=0)
    assert not capsys.readouterr().out


def test_disabled_is_as_if_amp_were_not_there():
    model = weights(1.0)
    optimizer = sgd(model)
    assert quiet(model, optimizer, enabled=False) == (model, optimizer)
    loss = model(torch.ones(1, 1)).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss
        scaled_loss.backward()
    optimizer.step()
    assert model.weight.item() == pytest.approx(0.9)
    assert not amp.state_dict()
    with amp.disable_casts():
        assert model(torch.ones(1, 1)).dtype is torch.float32


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"opt_level": "02"}, "the letter O"),
        ({"opt_level": 2}, "the letter O"),
        ({"opt_level": "o1"}, "did you mean 'O1'"),
        ({"opt_level": "O4"}, "'O0', 'O1', 'O2' or 'O3'"),
        ({"loss_scale": "fast"}, "loss_scale"),
        ({"loss_scale": -1.0}, "scale"),
        ({"keep_batchnorm_fp32": "yes", "opt_level": "O2"}, "keep_batchnorm_fp32"),
        ({"keep_batchnorm_fp32": True}, "does not go with opt_level='O1'"),
        ({"master_weights": True}, "use O2"),
        ({"master_weights": True, "opt_level": "O0"}, "their own masters"),
        ({"patch_torch_functions": True, "opt_level": "O2"}, "belongs to opt_level='O1'"),
        ({"cast_model_type": torch.float16, "opt_level": "O0"}, "use 'O2' or 'O3'"),
        ({"cast_model_type": "half"}, "cast_model_type"),
        ({"cast_model_outputs": torch.float64}, "cast_model_outputs"),
        ({"num_losses": 0}, "num_losses"),
        ({"min_loss_scale": 4.0, "max_loss_scale": 2.0}, "min_loss_scale"),
    ],
)
def test_wrong_options_are_refused_by_name(options, says):
    model = weights(1.0)
    with pytest.raises(ua.ConfigError, match=says):
        quiet(model, sgd(model), **options)
    assert model.weight.dtype is torch.float32


def test_wrong_objects_are_refused_with_what_to_do():
    model = weights(1.0)
    with pytest.raises(errors.WrongObjectError, match=r"models must be a torch\.nn\.Module or a list"):
        quiet((model, model), sgd(model))
    with pytest.raises(errors.WrongObjectError, match="optimizers must be"):
        quiet(model, model.parameters())
    with pytest.raises(errors.PrepareError, match=r"after amp\.initialize"):
        quiet(torch.nn.DataParallel(model), sgd(model))
    with pytest.raises(errors.ParamDtypeError, match=r"'weight'.*without \.half\(\)"):
        quiet(weights(1.0).half())
    _, optimizer = quiet(model, sgd(model))
    with pytest.raises(errors.PrepareError, match="make a new optimizer"):
        quiet(model, optimizer)
    with pytest.raises(errors.PrepareError, match="closure"):
        quiet(weights(1.0), torch.optim.LBFGS(model.parameters()))


def test_steps_in_the_wrong_order_are_refused_with_what_to_do():
    amp._amp_state.__init__()
    for call in (amp.state_dict, lambda: amp.load_state_dict({}), lambda: amp.disable_casts().__enter__()):
        with pytest.raises(errors.StepOrderError, match=r"amp\.initialize"):
            call()
    model = weights(1.0, 1.0)
    plain = sgd(model)
    with pytest.raises(errors.StepOrderError, match=r"amp\.initialize"):
        backward(model, plain, [1.0, 1.0])
    model, optimizer = ready("O1", num_losses=2)
    for level in LEVELS:
        model, optimizer = ready(level, num_losses=2)
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(errors.StepOrderError, match="scale_loss"):
            optimizer.step()
    model, optimizer = ready("O1", num_losses=2)
    with pytest.raises(errors.WrongObjectError, match="did not go through"):
        backward(model, plain, [1.0, 1.0])
    with pytest.raises(ua.ConfigError, match="from 0 to 1.*num_losses"):
        backward(model, optimizer, [1.0, 1.0], loss_id=2)
    backward(model, optimizer, [1.0, 1.0], delay_unscale=True)
    with pytest.raises(errors.StepOrderError, match="delay_unscale"):
        optimizer.step()
    with pytest.raises(errors.StepOrderError, match="loss 0 with delay_unscale"):
        backward(model, optimizer, [1.0, 1.0], loss_id=1)
    with pytest.raises(errors.UnsupportedError, match="closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(errors.LossError, match="scalar"), amp.scale_loss(model(torch.ones(2, 2)), optimizer):
        pass


def test_optimizers_keep_to_the_call_that_they_went_through():
    first = ready("O1", loss_scale=64.0)
    second = ready("O2", loss_scale=128.0)
    for model, optimizer in (first, second):
        backward(model, optimizer, [1.0, 0.0])
        optimizer.step()
        assert model.weight.tolist() == [[0.75, 2.0]]
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 128.0
    loss = sum(model(torch.ones(1, 2)).sum() for model, _ in (first, second))
    with pytest.raises(errors.WrongObjectError, match="use one call"), amp.scale_loss(loss, [first[1], second[1]]):
        pass


def test_parameters_of_no_model_are_trained_where_nothing_is_cast_and_refused_elsewhere():
    for level in LEVELS:
        model, criterion = weights(1.0), weights(1.0)
        optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.25)
        if level in ("O2", "O3"):
            with pytest.raises(errors.PrepareError, match="belong to no prepared model"):
                quiet(model, optimizer, opt_level=level)
            continue
        quiet(model, optimizer, opt_level=level, loss_scale=16.0)
        with amp.scale_loss(criterion(model(torch.ones(1, 1))).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        assert (model.weight.item(), criterion.weight.item()) == (0.75, 0.75)


def test_the_first_step_without_gradients_does_nothing_as_torch_does():
    model, optimizer = ready("O2")
    optimizer.zero_grad()
    optimizer.step()
    assert model.weight.tolist() == [[1.0, 2.0]]


def test_names_of_the_old_interface_say_what_to_do():
    with pytest.raises(AttributeError, match="call initialize"):
        amp.init()
    with pytest.raises(AttributeError, match="scale_loss scales"):
        amp.GradScaler()
    assert not hasattr(amp, "no_such_name")
