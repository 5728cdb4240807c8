"""state_dict and load_state_dict in Apex's layout."""

import copy
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from apex_loops import ready, step, weights  # noqa: E402

from unifiedamp import errors  # noqa: E402
from unifiedamp.compat import apex as amp  # noqa: E402

OLD = json.loads((Path(__file__).parent / "apex_checkpoint.json").read_text(encoding="utf-8"))
"""Written by hand from Apex's documented keys: two losses, one a step before its scale grows."""


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_an_old_checkpoint_loads_and_goes_on_with_the_same_scale(level):
    model, optimizer = ready(level, num_losses=2)
    amp.load_state_dict(OLD["amp"])
    assert (
        amp.state_dict()
        == OLD["amp"]
        == {
            "loss_scaler0": {"loss_scale": 16384.0, "unskipped": 1999},
            "loss_scaler1": {"loss_scale": 512.0, "unskipped": 17},
        }
    )
    step(model, optimizer, [2.0**-10, 0.0])
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 32768.0, "unskipped": 0}
    assert amp.state_dict()["loss_scaler1"] == OLD["amp"]["loss_scaler1"]
    assert [scaler.loss_scale() for scaler in amp._amp_state.loss_scalers] == [32768.0, 512.0]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_training_goes_on_as_if_it_had_not_stopped(level):
    gradients = [[0.25, 0.5], [float("inf"), 0.0], [0.125, 0.25], [-0.5, 0.0]]

    def adam(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return amp.initialize(model, optimizer, opt_level=level, verbosity=0, max_loss_scale=2.0**12)

    model, optimizer = adam(weights(1.0, 2.0))
    for gradient in gradients:
        step(model, optimizer, gradient)
    whole = model.weight.tolist(), json.loads(json.dumps(amp.state_dict()))

    model, optimizer = adam(weights(1.0, 2.0))
    for gradient in gradients[:2]:
        step(model, optimizer, gradient)
    saved = model.state_dict(), optimizer.state_dict(), json.dumps(amp.state_dict())
    model, optimizer = adam(weights(0.0, 0.0))
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    amp.load_state_dict(json.loads(saved[2]))
    for gradient in gradients[2:]:
        step(model, optimizer, gradient)
    assert (model.weight.tolist(), amp.state_dict()) == whole
    assert model.state_dict()["weight"].dtype is torch.float32


def test_o2_saves_and_loads_float32_weights_also_in_a_wrapper():
    model, optimizer = ready("O2", lr=1.0, loss_scale=128.0, start=(1.0, 1.0))
    step(model, optimizer, [2.0**-14, 0.0])
    true = [[1.0 - 2.0**-14, 1.0]]
    assert model.weight.tolist() == [[1.0, 1.0]]
    wrapped = torch.nn.Sequential(model)
    assert wrapped.state_dict()["0.weight"].tolist() == model.state_dict()["weight"].tolist() == true
    saved = copy.deepcopy(wrapped.state_dict())
    assert copy.deepcopy(model).state_dict()["weight"].tolist() == [[1.0, 1.0]]
    step(model, optimizer, [1.0, 1.0])
    wrapped.load_state_dict(saved)
    assert model.state_dict()["weight"].tolist() == true
    step(model, optimizer, [0.0, 0.5])
    assert model.state_dict()["weight"].tolist() == [[1.0 - 2.0**-14, 0.5]]
    assert model.weight.tolist() == [[1.0, 0.5]]
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict({"weight": torch.ones(3, 2)})


def test_a_state_of_more_losses_loads_as_far_as_it_goes():
    ready("O1")
    with pytest.warns(errors.StateWarning, match="holds 2 loss scalers and num_losses is 1"):
        amp.load_state_dict(OLD["amp"])
    assert amp.state_dict() == {"loss_scaler0": OLD["amp"]["loss_scaler0"]}


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (OLD, r"unexpected keys.*checkpoint\['amp'\]"),
        ({"loss_scaler0": {"loss_scale": 8.0}, "loss_scaler1": OLD["amp"]["loss_scaler1"]}, "unskipped"),
        ({"loss_scaler0": OLD["amp"]["loss_scaler0"], "loss_scaler1": {"loss_scale": 0.0, "unskipped": 1}}, "positive"),
        ([], "got list"),
    ],
)
def test_what_is_no_state_is_refused_and_changes_nothing(state, says):
    ready("O1", num_losses=2)
    before = amp.state_dict()
    with pytest.raises(errors.CheckpointError, match=says):
        amp.load_state_dict(state)
    assert amp.state_dict() == before


def test_state_dict_writes_into_what_it_is_given():
    ready("O1")
    saved = {"epoch": 3}
    assert amp.state_dict(saved) is saved
    assert saved == {"epoch": 3, "loss_scaler0": {"loss_scale": 65536.0, "unskipped": 0}}
