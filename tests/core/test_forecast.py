"""What formats do to counted values, against casts of ml_dtypes and numpy; and the policies that follow."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.backend import SessionSpec
from unifiedamp.backend.forecast import PLACES, SCALINGS, SHIFT, ProductCounts, TensorCounts
from unifiedamp.backend.rounding import scale_values
from unifiedamp.forecast.counted import dump_counts
from unifiedamp.forecast.forecast import Forecast
from unifiedamp.forecast.losses import rounding, rounding_at
from unifiedamp.forecast.scaled_formats import SCALED_FORMATS
from unifiedamp.forecast.start import check_policy
from unifiedamp.forecast.totals import LayerTotals, Totals
from unifiedamp.formats import BLOCK_FORMATS, FLOAT_FORMATS
from unifiedamp.formats.block_rounding import round_blocks
from unifiedamp.formats.rounding import round_to

ml_dtypes = pytest.importorskip("ml_dtypes")
DTYPES = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
ABOUT = {"backend": "torch", "device": "cpu", "policy": "float32", "framework": "torch", "steps": 1, "asked": 1}


def counted(values):
    bits = np.abs(np.float32(values)).view(np.uint32) >> SHIFT
    return TensorCounts(np.bincount(bits, minlength=PLACES), float(np.max(np.abs(values), initial=0)))


def spread(center, deviation, count=20000):
    """Log-normal values of both signs."""
    rng = np.random.default_rng(0)
    return (center * np.exp(rng.normal(0, deviation, count)) * rng.choice([-1, 1], count)).astype(np.float32)


def rounding_by_table(counts, largest, format, scale=1.0, saturate=False):
    """What the table finds of the second of two tensors, at the second of two scales."""
    others = np.stack([np.zeros(PLACES, int), counts]), np.array([0.0, largest])
    found = rounding_at(*others, format, (2.0, scale), saturate)
    assert found.values[0] == found.error[0, 0] == found.overflow[1, 0] == 0
    return replace(found, **{each.name: getattr(found, each.name)[..., 1][..., -1] for each in fields(found)
                             if each.name != "values"}, values=found.values[1])  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("rounding", [rounding, rounding_by_table])
@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(("center", "deviation", "scale"), [(1, 0.5, 1), (1, 3, 1e-3), (1, 6, 1e4), (1e-12, 9, 37)])
def test_losses_are_those_of_casts(name, center, deviation, scale, saturate, rounding):
    """But for values whose interval lies across an edge: 1/8 of a power of two."""
    format, values = FLOAT_FORMATS[name], spread(center, deviation)
    seen = counted(values)
    found = rounding(seen.counts, seen.largest, format, float(scale), saturate)
    scaled = values.astype(np.float64) * scale
    cast = scaled.astype(np.float32).astype(DTYPES[name]).astype(np.float64)
    beyond = ~np.isfinite(cast)
    cast = np.where(beyond, np.sign(scaled) * format.max, cast) if saturate else np.where(beyond, 0.0, cast)
    near = {edge: np.sum(np.abs(np.log2(np.abs(scaled) / edge)) < 0.18)
            for edge in (format.min_subnormal / 2, format.min_normal, format.max)}  # fmt: skip
    flushed = np.sum(np.abs(scaled) <= format.min_subnormal / 2)
    below = np.sum(np.abs(scaled) < format.min_normal)
    assert abs(found.flushed - flushed) <= near[format.min_subnormal / 2]
    assert abs(found.flushed + found.subnormal - below) <= near[format.min_normal]
    assert abs(found.overflow - beyond.sum()) <= near[format.max]
    assert found.error == pytest.approx(np.sum(((cast - scaled) / scaled) ** 2), rel=0.05)
    assert found.values == values.size


@pytest.mark.parametrize("rounding", [rounding, rounding_by_table])
def test_values_alike_lose_nothing_that_they_do_not(rounding):
    """0.5 is a number of each format; and all that is left of an interval is its largest value."""
    seen = counted(np.full(10, 0.5))
    for format in FLOAT_FORMATS.values():
        assert rounding(seen.counts, seen.largest, format).error < 1e-9


def test_scales_of_float8_are_those_of_the_recipes():
    """Tensorwise: by the present largest value; delayed: by the largest before, beyond which values saturate."""
    totals, steps = Totals(), [spread(1, 1), spread(100, 1), spread(1, 1)]
    for values in steps:
        totals.add([ProductCounts("a", "Linear", 1, "", {"input": counted(values)})])
    float8 = totals.layers["a"].tensors["input"].float8
    format, before = FLOAT_FORMATS["float8_e4m3fn"], [0, 0, 1]
    for recipe, scale_of in (("tensorwise", [0, 1, 2]), ("delayed", before)):
        error = saturated = 0.0
        for values, source in zip(steps, scale_of, strict=True):
            scaled = values.astype(np.float64) * (format.max / np.abs(steps[source]).max())
            cast = np.clip(scaled, -format.max, format.max).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
            error += np.sum(((cast - scaled) / scaled) ** 2)
            saturated += np.sum(np.abs(scaled) > 464)
        values, _, _, overflow, found = float8[recipe]
        assert values == 60000
        assert found == pytest.approx(error, rel=0.05)
        assert overflow == pytest.approx(saturated, rel=0.05)


def layer(name, work=100, float8="", **tensors):
    return ProductCounts(name, "Linear", work, float8, {key: counted(values) for key, values in tensors.items()})


def totals_of(product):
    totals = Totals()
    totals.add([product])
    return totals.layers[product.layer]


def forecast(*products, formats=("bfloat16", "float16", "float8"), max_error=0.1):
    totals = Totals()
    totals.add(products)
    return Forecast.of(ABOUT, list(totals.layers.values()), max_error, formats)


def with_scalings(matrix, square=False):
    """The counts of a matrix, and those of its scaled values."""
    scaled = {name: counted(scale_values(matrix, name, square).ravel()) for name in SCALINGS}
    return replace(counted(matrix.ravel()), scaled=scaled)


@pytest.mark.parametrize("deviation", [0.3, 3])
@pytest.mark.parametrize("name", SCALED_FORMATS)
def test_losses_of_formats_with_block_scales(name, deviation):
    """Those of the reference of rounding, which scales and rounds each value."""
    matrix = spread(1, deviation, 128 * 192).reshape(128, 192)
    scaled = SCALED_FORMATS[name]
    if name in BLOCK_FORMATS:
        held = round_blocks(matrix, BLOCK_FORMATS[name])
    else:
        scale = scale_values(matrix, scaled.scaling) / matrix
        held = round_to(matrix * scale, scaled.element) / scale
    product = ProductCounts("a", "Linear", 1, "", {"input": with_scalings(matrix)})
    (found,) = forecast(product, formats=[name]).layers[0].losses[name]
    assert found.flushed == pytest.approx(np.mean(held == 0), abs=1e-9)
    assert found.error == pytest.approx(np.mean(((held.astype(np.float64) - matrix) / matrix) ** 2), rel=0.05)


def test_policies_of_formats_with_block_scales():
    """Outliers cost their own row or block alone; of formats that run emulated alone, the hurt layers are named."""
    matrix = spread(1, 0.5, 128 * 192).reshape(128, 192)
    matrix[0, 0] = 1e9
    product = ProductCounts("a", "Linear", 1, "", {"input": with_scalings(matrix)})
    found = forecast(product, formats=["float8", "float8_rowwise", "nvfp4", "mxfp6_e2m3"])
    assert found.policies["float8"].policy.layer_overrides == {"a": "bfloat16"}
    assert str(found.policies["float8_rowwise"].policy) == "mixed_float8;recipe=rowwise"
    assert found.policies["nvfp4"].reason == "nvfp4 runs emulated alone; it would hurt a"
    assert found.policies["mxfp6_e2m3"].reason == "mxfp6_e2m3 runs emulated alone"
    assert str(found.policy) == "mixed_float8;recipe=rowwise"
    again = LayerTotals.from_json(json.loads(json.dumps(totals_of(product).to_json())))
    assert str(Forecast.of(ABOUT, [again], 0.1, list(found.policies))) == str(found)


WELL = {"weight": spread(0.05, 0.5), "input": spread(1, 0.5), "output": spread(1, 0.5)}


def test_policies_keep_hurt_layers_out():
    outlier = np.concatenate([spread(1, 0.5), [1e7]])
    found = forecast(
        layer("well", gradient=spread(1e-4, 1), **WELL),
        layer("faint", gradient=spread(1e-15, 1), **WELL),
        layer("spiked", **{**WELL, "input": outlier}, gradient=spread(1e-4, 1)),
        layer("conv", float8="only linear layers are", **WELL, gradient=spread(1e-4, 1)),
    )
    policies = {name: one.policy for name, one in found.policies.items()}
    assert policies["float16"].layer_overrides == {"faint": "float32", "spiked": "float32"}
    assert policies["float8"].layer_overrides == {"spiked": "bfloat16"}
    assert policies["bfloat16"] == ua.Policy.parse("mixed_bfloat16")
    assert found.policies["float8"].cost == pytest.approx((1 + 1 + 2 + 2) / 4)
    assert found.policies["float16"].cost == pytest.approx((2 + 4 + 4 + 2) / 4)
    assert found.policy == policies["float8"]
    assert all(ua.Policy.parse(str(policy)) == policy for policy in policies.values())
    assert found.policies["float16"].hurt["faint"] == "gradient: 100% flushed to zero"
    assert found.policies["float16"].hurt["spiked"] == "input: 0.005% overflow"
    text = str(found)
    assert "not in float8: only linear layers are" in text
    assert text.endswith("cheapest within 0.1: mixed_float8;layers=spiked:bfloat16")


@pytest.mark.parametrize("center", [1e-4, 1e-10, 3e-14])
def test_the_loss_scale_that_float16_needs(center):
    """The smallest power of two at which the gradient's error is within the limit, by casts of numpy."""
    values = spread(center, 0.5)
    found = forecast(layer("a", gradient=values, **WELL), formats=["float16"])
    (one,) = found.layers
    errors = {}
    for scale in (one.scale_needed / 2, one.scale_needed):
        scaled = values.astype(np.float64) * scale
        errors[scale] = np.mean(((scaled.astype(np.float16) - scaled) / scaled) ** 2)
    assert errors[one.scale_needed] <= 0.1
    assert one.scale_needed == 1 or errors[one.scale_needed / 2] > 0.1
    assert found.loss_scale == max(2.0**16, one.scale_needed)
    assert found.policy.resolved_loss_scale.initial_scale == found.loss_scale
    assert not found.policy.layer_overrides


@pytest.mark.parametrize(("largest", "limit"), [(None, 2.0**24), (1.0, 2.0**15), (60000.0, 1.0), (1e5, 0.0)])
def test_the_largest_loss_scale_that_a_layer_takes(largest, limit):
    """Any, where it has no gradients; none, where they overflow float16 by themselves."""
    gradients = {} if largest is None else {"gradient": np.float32([1e-3, largest])}
    (one,) = forecast(layer("a", **WELL, **gradients), formats=["float16"]).layers
    assert one.scale_limit == limit


@pytest.mark.parametrize(("largest", "limit"), [(5e-3, 2.0**23), (60.0, 2.0**10)])
def test_the_loss_scale_overflows_no_layer_that_takes_more_work(largest, limit):
    """A layer whose gradients are too faint for every scale that the other one takes is overridden."""
    faint, loud = (
        ProductCounts(name, "Linear", work, "", {"weight": counted(WELL["weight"]), "gradient": counted(values)})
        for name, work, values in (
            ("faint", 1, spread(1e-13, 0.1)),
            ("loud", 2, np.float32([largest] + [largest / 4] * 99_999)),
        )
    )
    found = forecast(faint, loud, formats=["float16"])
    assert [each.scale_limit for each in found.layers][1] == limit
    assert found.loss_scale <= limit
    assert list(found.policies["float16"].policy.layer_overrides) == ["faint"] * (found.layers[0].scale_needed > limit)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("float32;layers=head:float16", "computes in float16,"),
        ("mixed_bfloat16;layers=head:float16", "computes in float16,"),
        ("mixed_float8;layers=head:float16", "computes in float16 and float8,"),
        ("float16", "computes in float16,"),
        ("float32;layers=head:bfloat16", ""),
        ("bfloat16", ""),
    ],
)
def test_a_session_that_computes_in_float16_anywhere_is_refused(policy, said):
    backend = SimpleNamespace(spec=SessionSpec(ua.Policy.parse(policy), ua.NoLossScale()))
    with pytest.raises(ua.PolicyError, match=said) if said else nullcontext():
        check_policy(backend)


def test_exponents_are_shares_of_what_is_not_zero():
    values = np.float32([0, 0, 1, 1.5, -1.99, 4, 2.0**-126, 2.0**-127, -(2.0**-129)])
    (one,) = forecast(layer("a", input=values), formats=["float16"]).layers
    assert one.exponents["input"] == pytest.approx({0: 3 / 7, 2: 1 / 7, -126: 1 / 7, -127: 2 / 7})


def test_what_was_counted_is_json():
    totals = Totals()
    totals.add([layer("a", gradient=spread(1e-15, 1), **WELL)])
    saved = json.loads(json.dumps(dump_counts(ABOUT, totals)))
    again = Forecast.of_counted(saved, 0.1)
    assert str(again) == str(Forecast.of(ABOUT, list(totals.layers.values()), 0.1))
    assert json.loads(json.dumps(again.to_dict()))["chosen"] == "mixed_float8"


BAD_COUNTS = {
    "no mapping": (lambda saved: [saved], "no counts of a forecast"),
    "a recording": (lambda saved: {"kind": "header", "format": "unifiedamp-recording"}, "no counts of a forecast"),
    "newer": (lambda saved: {**saved, "version": 2}, "are of format 2, and this command reads format 1"),
    "without a version": (lambda saved: {**saved, "version": None}, "are of format None"),
    "without steps": (lambda saved: {**saved, "about": {}}, "damaged .KeyError: 'steps'"),
    "without layers": (lambda saved: {**saved, "layers": 3}, "damaged .TypeError"),
    "another layer": (lambda saved: {**saved, "layers": [{"layer": "a"}]}, "damaged .KeyError: 'tensors'"),
}


@pytest.mark.parametrize("name", BAD_COUNTS)
def test_counts_of_another_version_are_refused(name):
    change, said = BAD_COUNTS[name]
    totals = Totals()
    totals.add([layer("a", **WELL)])
    with pytest.raises(ua.ConfigError, match=said):
        Forecast.of_counted(change(json.loads(json.dumps(dump_counts(ABOUT, totals)))), 0.1)


def test_inf_is_told_and_not_counted():
    bad = TensorCounts(counted(np.float32([1.0, np.inf])).counts, np.inf)
    found = forecast(ProductCounts("a", "Linear", 1, "", {"weight": counted(WELL["weight"]), "input": bad}))
    assert found.notes == ["a: the input held inf or nan in 1 steps"]


def test_a_page_shows_layers_policies_and_plots(tmp_path):
    found = forecast(layer("<b>&", gradient=spread(1e-15, 1), **WELL))
    found.write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<b>&" not in page
    assert "gradient: 100% flushed to zero" in page
    assert "No plots" not in page
    assert page.count("<figure") == 1
    assert "<script" not in page


def test_float8_needs_a_layer_that_runs_in_it():
    found = forecast(layer("conv", float8="only linear layers are", gradient=spread(1e-4, 1), **WELL))
    assert found.policies["float8"].reason == "no layer would run in float8"
    assert str(found.policy) == "mixed_bfloat16"


def test_a_model_of_one_layer_cannot_be_overridden():
    found = forecast(layer("", gradient=spread(1e-15, 1), **WELL), formats=["float16"])
    assert "cannot name" in found.policies["float16"].reason
    assert str(found.policy) == "float32"
