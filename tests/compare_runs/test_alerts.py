"""Alert rules on recorded steps: what they are given, when they fire, and what is refused."""

import math
import re

import pytest
from three_frameworks import PARTS, recorded

import unifiedamp as ua
from unifiedamp.config import plugins
from unifiedamp.recording import Alert, Alerts

HERE = [name for name in PARTS if plugins.is_installed(name)]


def fed(recording, *rules):
    alerts = Alerts(*rules)
    for record in (*recording.headers, *recording.steps):
        alerts.write(record)


@pytest.mark.parametrize("backend", HERE)
def test_each_statistic_is_that_of_the_record(backend):
    """Of SGD with the rate 0.1, in plain numbers: an update's norm is a tenth of its gradient's.

    Beside a bias before a norm, whose gradient is rounding: so the absolute tolerances, those of float32 weights.
    """
    run, found = recorded(backend), {}

    def keep(fired):
        found.setdefault(fired.rule.statistic, {})[fired.step, fired.name] = fired.value

    names = ("loss", "scale", "activation_largest", "gradient_flushed", "gradient_norm", "weight_norm", "update_norm")
    fed(run, *(Alert(name, above=-1.0, then=keep) for name in (*names, "update_ratio", "gradient_overflow")))
    assert [found["loss"][step, "loss"] for step in (1, 2, 3)] == [step["loss"] for step in run.steps]
    assert set(found["scale"].values()) == {8.0}
    for place, norm in found["gradient_norm"].items():
        assert found["update_norm"][place] == pytest.approx(0.1 * norm, rel=1e-4, abs=1e-7)
        if place in found["update_ratio"]:
            assert found["update_ratio"][place] == pytest.approx(
                0.1 * norm / found["weight_norm"][place], rel=1e-4, abs=1e-6
            )
    assert set(found["gradient_overflow"].values()) == {0.0}
    assert {name for _, name in found["activation_largest"]} >= {row["layer"] for row in run.steps[0]["activations"]}


def test_a_rule_fires_outside_its_range_alone():
    run, seen = recorded(HERE[0]), []
    losses = [step["loss"] for step in run.steps]
    middle = sorted(losses)[1]
    fed(run, Alert("loss", above=middle, then=seen.append), Alert("loss", below=middle, then=seen.append))
    assert sorted(each.value for each in seen) == sorted(value for value in losses if value != middle)
    gone = [*run.headers, {**run.steps[0], "loss": "nan"}]
    seen.clear()
    for record in gone:
        Alerts(Alert("loss", above=1e9, then=seen.append)).write(record)
    assert [math.isnan(each.value) for each in seen] == [True]


def test_names_choose_and_without_a_callback_it_warns():
    run = recorded(HERE[0])
    name = next(iter(run.steps[0]["compare"]["before"]))
    with pytest.warns(ua.AmpWarning, match=f"step 1: weight_norm of '{re.escape(name)}' is .*, above 0"):
        Alerts(Alert("weight_norm", above=0.0, names=name)).write(run.steps[0])


def test_what_a_callback_raises_ends_training():
    torch = pytest.importorskip("torch")

    def stop(fired):
        raise RuntimeError(str(fired))

    model = torch.nn.Linear(2, 1)
    amp = ua.Amp("torch", "float32", device="cpu")
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ua.ConfigError, match="'update_ratio'.* needs amp.record"):
        amp.record(Alerts(Alert("update_ratio", above=1.0)))
    with amp.record(Alerts(Alert("activation_largest", above=100.0, then=stop)), every=1):
        amp.backward(lambda: model(torch.ones(1, 2)).sum(), optimizer)
        amp.step(optimizer)
        amp.backward(lambda: model(torch.full((1, 2), 1e4)).sum(), optimizer)
        with pytest.raises(RuntimeError, match="step 2: activation_largest of 'the model' is 1e"):
            amp.step(optimizer)
    amp.close()


def test_mistakes_are_told():
    with pytest.raises(ua.ConfigError, match="did you mean 'weight_norm'"):
        Alert("weight_norms", above=1.0)
    with pytest.raises(ua.ConfigError, match="give above= or below="):
        Alert("loss")
