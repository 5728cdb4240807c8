"""O1's casts: models, functions of the user's own, and turning them off; and how near mixed losses stay to float32."""

import copy
import inspect
import io
import types

import pytest

torch = pytest.importorskip("torch")

from apex_loops import LEVELS  # noqa: E402

import unifiedamp as ua  # noqa: E402
from unifiedamp.compat import apex as amp  # noqa: E402

HALF, FLOAT = torch.float16, torch.float32


class Net(torch.nn.Module):
    """Notes what its layer answers in."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x, *, twice=False):
        y = self.layer(x)
        self.seen = y.dtype
        return y * 2 if twice else y


def net(level="O1", **options):
    return amp.initialize(Net(), opt_level=level, verbosity=0, **options)


def test_casts_are_made_in_the_forward_and_not_where_they_are_disabled():
    model = net()
    model(torch.ones(1, 2))
    assert model.seen is HALF
    assert (torch.ones(1, 2) @ torch.ones(2, 1)).dtype is FLOAT  # unlike Apex, nothing outside is patched
    with amp.disable_casts():
        model(torch.ones(1, 2))
        assert model.seen is FLOAT
    model.forward(torch.ones(1, 2))
    assert model.seen is HALF
    assert not torch.is_autocast_enabled("cpu")


def test_patch_torch_functions_false_makes_no_casts():
    model = net(patch_torch_functions=False)
    model(torch.ones(1, 2))
    assert model.seen is FLOAT


def test_an_initialized_model_copies_pickles_and_keeps_its_signature():
    model = net()
    assert list(inspect.signature(model.forward).parameters) == ["x", "twice"]
    twin = copy.deepcopy(model)
    twin.layer.weight.data.zero_()
    twin.layer.bias.data.zero_()
    assert twin(torch.ones(1, 2)).item() == 0.0 != model(torch.ones(1, 2)).item()
    assert (twin.seen, model.seen) == (HALF, HALF)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(torch.ones(1, 2)), model(torch.ones(1, 2)))
    assert again.seen is HALF


def dtypes(*tensors):
    return [tensor.dtype for tensor in tensors]


@pytest.mark.parametrize(
    ("decorate", "expected"),
    [
        (amp.half_function, [HALF, HALF, torch.int64]),
        (amp.float_function, [FLOAT, FLOAT, torch.int64]),
        (amp.promote_function, [FLOAT, FLOAT, torch.int64]),
    ],
)
def test_decorated_functions_get_their_dtype_under_o1_only(decorate, expected):
    plain = [FLOAT, HALF, torch.int64]
    tensors = torch.ones(1), torch.ones(1).half(), torch.ones(1, dtype=torch.int64)
    function = decorate(dtypes)
    of_a_list = decorate(lambda values, scale: dtypes(*values))
    for level in LEVELS:
        net(level)
        wanted = expected if level == "O1" else plain
        assert function(*tensors) == wanted
        assert of_a_list(list(tensors), scale=2) == wanted
        with amp.disable_casts():
            assert function(*tensors) == plain


def test_a_half_function_takes_the_dtype_of_the_casts():
    net(cast_model_type=torch.bfloat16)
    assert amp.half_function(dtypes)(torch.ones(1)) == [torch.bfloat16]


def test_the_body_of_a_float_function_stays_float32_inside_a_model():
    model = Net()
    product = amp.float_function(lambda a, b: a @ b)
    model.forward = types.MethodType(lambda self, x: product(self.layer(x), torch.ones(1, 1)), model)
    amp.initialize(model, opt_level="O1", verbosity=0, cast_model_outputs=HALF)
    seen = []
    model.register_forward_hook(lambda module, args, output: seen.append(output.dtype), prepend=True)
    model(torch.ones(1, 2))
    assert seen == [FLOAT]


def test_functions_are_registered_by_module_and_name():
    module = types.ModuleType("mine")
    module.look = dtypes
    amp.register_half_function(module, "look")
    amp.register_float_function(module, "look")  # the last one counts
    net("O0")
    assert module.look(torch.ones(1).half()) == [HALF]
    net("O1")
    assert module.look(torch.ones(1).half()) == [FLOAT]
    with pytest.raises(ua.ConfigError, match="'mine' has no function named 'lok'"):
        amp.register_promote_function(module, "lok")


def curve(level, **options):
    """Return 40 losses of a small classifier with batch norm and momentum."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
    x += 2 * torch.randn(4, 16)[y]
    layers = [torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh(), torch.nn.Linear(32, 4)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)
    losses = []
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_mixed_losses_stay_near_those_of_float32(level):
    # float16 rounds each number by up to 2**-11. A loss here hangs on about ten roundings one after the other (weights,
    # input, two products, the norm, the activation, and the same backward), and descent damps what earlier steps added:
    # 10 * 2**-11, about 0.5 %. The static scale keeps both from skipping, so that steps correspond.
    plain, mixed = curve("O0"), curve(level, loss_scale=128.0)
    assert plain[-1] < 0.2 * plain[0]
    assert mixed == pytest.approx(plain, rel=10 * 2.0**-11)
    assert mixed != plain
