"""The colors of pages, computed: text and curves can be read on light, on dark and on paper."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from page_checks import checked

from unifiedamp.output.charts.styles import COLORS
from unifiedamp.output.pages import render

TEXT, CURVES = 4.5, 3.0
"""WCAG 2: the contrast of text (1.4.3), and of what a plot shows (1.4.11)."""


@pytest.fixture(scope="module")
def style():
    about = dict.fromkeys(("title", "machine", "versions", "date", "command"), "x")
    page = render(
        "comparison",
        about=about,
        final=True,
        advice=[],
        columns=[],
        rows=[],
        heads=1,
        notes=[],
        drawings=[],
        not_drawn="",
    )
    return checked(page).style


def variables(block):
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))


@pytest.fixture(params=["light", "dark"])
def colors(style, request):
    """Name → color. What is printed is light: dark colors are for screens alone."""
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert "@media screen and (prefers-color-scheme: dark) {\n  :root {" in style
    found = variables(light)
    return found if request.param == "light" else found | variables(dark)


def channels(color):
    return [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]


def luminance(rgb):
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_measure_itself():
    assert contrast(channels("#000000"), channels("#ffffff")) == pytest.approx(21.0)
    assert contrast(channels("#777777"), channels("#ffffff")) == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("name", ["ink", "soft", "accent", "good", "bad", "warn"])
@pytest.mark.parametrize("behind", ["paper", "panel"])
def test_text_can_be_read(colors, name, behind):
    assert contrast(channels(colors[name]), channels(colors[behind])) >= TEXT


@pytest.mark.parametrize("number", range(COLORS + 1))
def test_curves_can_be_seen(colors, number):
    assert contrast(channels(colors[f"c{number}"]), channels(colors["paper"])) >= CURVES


def test_text_on_an_area_can_be_read(style, colors):
    areas = re.findall(r"svg \.\w+ \{ fill: var\(--(\w+)\); fill-opacity: ([.\d]+); \}", style)
    assert len(areas) == 4
    for name, opacity in areas:
        share = float(opacity)
        mixed = [
            share * over + (1 - share) * under
            for over, under in zip(channels(colors[name]), channels(colors["paper"]), strict=True)
        ]
        assert contrast(channels(colors["ink"]), mixed) >= TEXT


DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
"""Machado, Oliveira and Fernandes (2009), of linear RGB."""


def lab(rgb, seen):
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in rgb]
    if seen:
        linear = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True)))) for row in seen]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    xyz = [sum(a * b for a, b in zip(row, linear, strict=True)) / w for row, w in zip(to_xyz, white, strict=True)]
    x, y, z = (each ** (1 / 3) if each > 0.008856 else 7.787 * each + 16 / 116 for each in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("seen", [None, DEUTERANOPIA, PROTANOPIA], ids=["all", "deuteranopia", "protanopia"])
def test_the_first_four_colors_differ_for_every_eye(colors, seen):
    """Of float32 and three policies; beyond those, and on grey paper, dashes and markers tell curves apart."""
    for one, other in combinations([f"c{number}" for number in range(4)], 2):
        points = zip(lab(channels(colors[one]), seen), lab(channels(colors[other]), seen), strict=True)
        assert sum((a - b) ** 2 for a, b in points) ** 0.5 > 10, (one, other)


def test_nothing_depends_on_the_reader_having_color(style):
    assert "display: none" not in style
    assert "visibility: hidden" not in style
    assert re.search(r"@media print \{", style)
