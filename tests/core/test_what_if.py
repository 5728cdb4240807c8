"""What formats would do to recorded values, against numpy's and this package's own rounding; and alerts on it."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.formats import FLOAT_FORMATS
from unifiedamp.formats.rounding import round_to
from unifiedamp.recording import Alert, Alerts, lost, recorded
from unifiedamp.recording.counts import EMPTY, Distribution

LOW, HIGH, EACH = -34, 11, 4000


def spread(low=LOW, high=HIGH):
    """As many values in each power of two, spread evenly over it; and what a recorder counts of them."""
    exponents = range(low, high)
    values = np.concatenate([2.0**e * (1 + (np.arange(EACH) + 0.5) / EACH) for e in exponents])
    return values, Distribution(3, 0, 0, 0, dict.fromkeys(exponents, EACH))


@pytest.mark.parametrize("scale", [1.0, 2.0**-9, 100.0, None])
@pytest.mark.parametrize("name", FLOAT_FORMATS)
def test_shares_are_those_of_rounding(name, scale):
    values, counts = spread()
    format, found, saturates = FLOAT_FORMATS[name], lost(counts, name, scale), name not in ("float16", "bfloat16")
    assert scale is None or found.scale == scale
    assert np.log2(found.scale) % 1 == 0 or scale
    scaled = values * found.scale
    saturated = np.float64(round_to(np.float32(scaled), format, saturate=True))
    if scale is None:
        assert found.overflow == 0
        assert format.max / 8 < scaled.max() <= format.max if saturates else found.scale == 1
    assert found.flushed == pytest.approx(np.mean(saturated == 0), abs=1e-4)
    assert found.subnormal == pytest.approx(np.mean((scaled < format.min_normal) & (saturated > 0)), abs=1e-4)
    edge = format.max + 2.0 ** (format.max_exponent - format.mantissa_bits - 1)
    assert found.overflow == pytest.approx(np.mean(scaled > edge), abs=1e-4)
    held = saturated if saturates else np.where(scaled > edge, 0.0, saturated)
    assert found.error == pytest.approx(np.mean(((held - scaled) / scaled) ** 2), rel=0.02)


def test_nothing_is_lost_of_nothing():
    assert lost(EMPTY, "float16") is None
    with pytest.raises(ua.ConfigError, match="did you mean 'float8_e5m2'"):
        lost(EMPTY, "float8_e5m3")
    with pytest.raises(ua.ConfigError, match="scale must be a positive number"):
        lost(spread()[1], "float16", 0.0)


def step():
    def gradient(**exponents):
        counts = {"zero": 0, "inf": 0, "nan": 0, "overflow": 0, "exponents": {name[1:]: 4 for name in exponents}}
        return {"true": counts, "scaled": counts}

    moments = {"dtype": "float32", "norm": 0.5, **gradient(e_30=1, e2=1)["true"]}
    moments["exponents"] = {"-30": 3, "2": 1}
    return {
        "kind": "step", "step": 7, "gradients": {"w": gradient(e0=1), "v": gradient(e0=1, e2=1)},
        "states": {"w": {"weight": moments, "update": {**moments, "norm": 0.125}}},
    }  # fmt: skip


def test_alerts_on_formats_and_states():
    fired = []
    rules = Alerts(
        Alert("state_flushed", above=0.7, format="float16", names="*/weight", then=fired.append),
        Alert("state_flushed", above=0.0, format="bfloat16", then=fired.append),
        Alert("gradient_error", above=0.0, format="float4_e2m1fn", names="v", then=fired.append),
        Alert("state_norm", below=1.0, names="*/weight", then=fired.append),
        Alert("update_ratio", above=0.2, then=fired.append),
    )
    rules.write({"kind": "header", "states": True})
    rules.write(step())
    assert [(each.rule.statistic, each.name) for each in fired] == [
        ("state_flushed", "w/weight"), ("gradient_error", "v"), ("state_norm", "w/weight"),
        ("update_ratio", "w"),
    ]  # fmt: skip
    assert [fired[0].value, fired[-1].value] == [0.75, 0.25]
    assert str(fired[0]) == "step 7: state_flushed in float16 of 'w/weight' is 0.75, above 0.7"
    assert dict(recorded(step(), "states"))["w/weight"].exponents == {-30: 3, 2: 1}


@pytest.mark.parametrize(
    ("statistic", "format", "says"),
    [
        ("state_flushed", None, "give format="), ("gradient_norm", "float16", "unknown statistic of a format"),
        ("gradient_flushed", "float9", "unknown number format"),
    ],
)  # fmt: skip
def test_alerts_that_make_no_sense(statistic, format, says):
    with pytest.raises(ua.ConfigError, match=says):
        Alert(statistic, above=0.5, format=format)


def test_an_alert_on_states_needs_them():
    for rule in (Alert("state_norm", above=1.0), Alert("state_error", above=1.0, format="float8_e5m2")):
        with pytest.raises(ua.ConfigError, match=r"needs amp.record\(..., states=True\)"):
            Alerts(rule).write({"kind": "header", "compare": True, "states": False})
