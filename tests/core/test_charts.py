"""Charts: where values lie, what ticks say, and what is left of many points; against plain arithmetic."""

from __future__ import annotations

import math
import re

import pytest
from effort import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st

from unifiedamp.output.charts import axes, bars, curves
from unifiedamp.output.charts.drawing import LETTERS, LINES, WIDTH, label_lines
from unifiedamp.output.charts.styles import Style, styles

FAST = settings(max_examples=FUZZ, deadline=None)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=5e-324, allow_infinity=False)


def check_axis(axis, values):
    """Each value is inside, in their order; a few ticks are inside too, and no two read alike."""
    places = [axis.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in places)
    assert len(axis.ticks) <= 2 * axes.TICKS
    assert all(-1e-6 <= axis.place(value) <= 1 + 1e-6 for value, _ in axis.ticks)


@FAST
@given(st.lists(FINITE, min_size=1))
def test_a_linear_axis_holds_any_values(values):
    check_axis(axes.linear(values, "x"), values)
    check_axis(axes.fitting(values, "x"), values)


@FAST
@given(st.lists(POSITIVE, min_size=1), st.sampled_from([2, 10]))
def test_a_logarithmic_axis_holds_any_positive_values(values, base):
    check_axis(axes.logarithmic(values, "x", base), values)


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        (axes.linear([0, 100], "x", pad=0), ["0", "20", "40", "60", "80", "100"]),
        (axes.linear([0, 29000], "x", pad=0), ["0", "10,000", "20,000"]),
        (axes.linear([0.1, 0.35], "x", pad=0), ["0.10", "0.15", "0.20", "0.25", "0.30", "0.35"]),
        (axes.linear([-1, 1], "x", pad=0), ["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
        (axes.logarithmic([0.001, 1000], "x"), ["0.001", "0.1", "10", "1000"]),
        (axes.logarithmic([0.2, 2.5], "x"), ["0.2", "0.5", "1", "2"]),
        (axes.logarithmic([2.0**13, 2.0**16], "x", 2), ["2¹³", "2¹⁴", "2¹⁵", "2¹⁶"]),
        (axes.logarithmic([2.0**-3, 2.0**-2], "x", 2), ["2⁻³", "2⁻²"]),
    ],
)
def test_ticks_are_round_numbers(axis, said):
    assert [words for _, words in axis.ticks] == said


def test_an_axis_fits_its_values():
    assert axes.fitting([0.01, 2.0], "loss").base == 10
    assert axes.fitting([1.9, 2.0], "loss").base == 0
    assert axes.fitting([-1.0, 200.0], "loss").base == 0
    assert axes.fitting([], "loss").ticks


@FAST
@given(st.lists(st.tuples(st.integers(0, 10**6), FINITE), min_size=1, unique_by=lambda point: point[0]))
def test_thinned_points_keep_ends_and_extremes(points):
    points = sorted(points)
    kept = curves.thinned(points, 4)
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert set(kept) <= set(points)
    assert kept == sorted(kept)
    assert len(kept) <= max(16, 4 * 5)
    values = [value for _, value in points]
    assert {min(values), max(values)} <= {value for _, value in kept}


def test_a_million_points_are_a_short_path():
    points = [(float(step), math.sin(step / 1e4)) for step in range(10**6)]
    axis = axes.linear([0, 1e6], "x"), axes.linear([-1, 1], "y")
    drawn = curves.curves("t", "d", *axis, [curves.Curve("c", points, Style("c1"))])
    assert sum(len(shape.attributes.get("d", "")) for shape in drawn.shapes) < 20_000


def test_a_curve_is_broken_where_a_value_is_missing():
    points = [(1, 1.0), (2, None), (3, float("nan")), (4, 2.0), (5, float("inf")), (6, 3.0), (7, 4.0)]
    assert curves.unbroken(points) == [[(1, 1.0)], [(4, 2.0)], [(6, 3.0), (7, 4.0)]]


def test_a_stepped_curve_keeps_a_value_until_the_next():
    axis = axes.linear([0, 2], "x", pad=0), axes.linear([0, 1], "y", pad=0)
    curve = curves.Curve("c", [(0, 0.0), (1, 1.0), (2, 1.0)], Style("c1"), stepped=True)
    (path,) = [s for s in curves.curves("t", "d", *axis, [curve]).shapes if "curve" in s.attributes.get("class", "")]
    middle = (curves.LEFT + curves.RIGHT) / 2
    expected = f"M{curves.LEFT} {curves.BOTTOM}H{middle}V{curves.TOP}H{curves.RIGHT}V{curves.TOP}"
    assert path.attributes["d"] == expected


@pytest.mark.parametrize("count", [0, 1, 3, 120, 121, 1000])
def test_joined_cells_show_the_largest_share(count):
    shares = [math.nan if step % 7 == 3 else step / count for step in range(count)]
    found = bars.joined(shares)
    assert len(found) == min(count, bars.CELLS)
    if count > 3:
        assert found[-1] == max(share for share in shares if not math.isnan(share))
    assert bars.joined([math.nan] * 5) == pytest.approx([math.nan] * 5, nan_ok=True)


def test_bars_are_as_long_as_their_values():
    drawn = [bars.Bar("one", "1", 1.0, "c1", 0.5, 1.5), bars.Bar("two", "2", 2.0, "c2")]
    found = bars.bars("t", "d", axes.linear([0, 2], "x", pad=0), drawn)
    one, two = (float(shape.attributes["width"]) for shape in found.shapes if shape.tag == "rect")
    assert two == pytest.approx(2 * one, abs=0.2)
    assert two == WIDTH - 4


@FAST
@given(st.text(max_size=300))
def test_labels_have_few_short_lines(words):
    lines = label_lines(words)
    assert 1 <= len(lines) <= LINES
    assert max(map(len, lines)) <= LETTERS
    if len(lines) < LINES:
        assert "\u202e" not in "".join(lines)


def test_a_long_label_keeps_its_end_and_breaks_at_dots():
    assert label_lines("encoder.layers.0.attention.self.query.weight") == [
        "encoder.layers.0.attention.self.query.", "weight",
    ]  # fmt: skip
    found = label_lines("block." * 80 + "weight")
    assert found[0].startswith("…")
    assert found[-1].endswith("weight")


@FAST
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz"), st.booleans()), max_size=30))
def test_up_to_eight_curves_differ_without_colors(keys):
    found = styles(keys)
    assert [re.fullmatch(r"c[0-7]", style.color) is not None for style in found] == [True] * len(keys)
    if len(keys) <= 8:
        assert len({(style.dash, style.marker) for style in found}) == len(keys)
    for dash in "xyz":
        assert len({style.dash for style, key in zip(found, keys, strict=True) if key[1] == dash}) <= 1
