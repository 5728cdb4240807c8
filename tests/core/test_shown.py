"""How sessions, plans, policies and step results show themselves: what they hold, escaped, without asking a device."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import get_args

import pytest
from toy.autograd import Sgd
from toy.harness import ToyHarness

import unifiedamp as ua
from unifiedamp import names
from unifiedamp.backend import ARRAY_DTYPES, COMPILE_MODES, OP_CHOICES, PRESETS, PlanRow, StepValues, result
from unifiedamp.backend.tuning import PRESETS as TUNING_PRESETS
from unifiedamp.conformance.plugin import peers
from unifiedamp.explain.plan import Plan
from unifiedamp.loss_scale import parse_loss_scale
from unifiedamp.names import BackendName, PolicyName
from unifiedamp.notebook import table_html
from unifiedamp.policy.dtypes import COMPUTE_DTYPES, DTYPES
from unifiedamp.policy.presets import BLOCK_POLICIES

HOSTILE = '<img src=x onerror="alert(1)">&amp;\u202e\x1b[31m'


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.cells: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes.update(attributes)
        if tag in ("td", "th", "caption"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.cells[-1] += text


def check_harmless(html: str) -> Page:
    """Return the parsed page: a table without scripts, and without colors that a dark or a light page hides."""
    page = Page(html)
    assert page.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert {name for name, _ in page.attributes} <= {"style", "scope"}
    for name, value in page.attributes:
        if name == "style":
            assert not re.search(r"(?<!-)\bcolor:|background|url\(|#[0-9a-f]{3}", value), value
            assert all("rgba(128, 128, 128" in part for part in value.split(";") if "solid" in part)
    return page


@pytest.fixture
def session():
    made = []

    def make(**arguments):
        made.append(ua.Amp("toy", **arguments))
        return made[-1]

    yield make
    for amp in made:
        amp.close()


def test_a_session_shows_its_settings(session):
    amp = session(policy="mixed_float16;layers=head.*:float32", loss_scale=128, accumulate_steps=4, tuning="fast")
    text = repr(amp)
    for held in (
        "'toy'",
        "mixed_float16",
        "head.*:float32",
        "static(scale=128.0)",
        "accumulate_steps=4",
        "cpu",
        "tf32",
    ):
        assert held in text
    cells = check_harmless(amp._repr_html_()).cells
    assert cells[:3] == ["Amp", "backend", "toy"]
    assert "static(scale=128.0)" in cells
    assert "schedule" not in text
    assert "\n" not in text


def test_a_session_shows_its_models_and_that_it_is_closed(session):
    amp = session(policy="float32")
    assert "models" not in repr(amp)
    model = ToyHarness().probe([1.0])
    amp.prepare(model, Sgd([model], 0.1))
    assert "models=['Model']" in repr(amp)
    assert "closed" not in repr(amp)
    amp.close()
    assert repr(amp).endswith(" closed>")
    assert check_harmless(amp._repr_html_()).cells[-2:] == ["state", "closed"]


def test_a_session_that_could_not_be_created_shows_that():
    amp = ua.Amp.__new__(ua.Amp)
    assert repr(amp) == "<Amp: not initialized>"
    assert "not initialized" in check_harmless(amp._repr_html_()).cells


class Waits(Exception):
    """Raised where the device would be asked."""


@pytest.mark.parametrize("backend", peers())
def test_showing_a_session_asks_the_device_nothing(backend, monkeypatch):
    amp = ua.Amp(backend, "float32", loss_scale="dynamic")

    def wait(*_, **__):
        raise Waits

    for name in ("read_state", "poll_state", "nonfinite_report"):
        monkeypatch.setattr(amp.backend.training, name, wait)
    assert f"'{backend}'" in repr(amp)
    assert amp.backend.device.name in amp._repr_html_()
    monkeypatch.undo()
    amp.close()


def test_a_step_result_that_was_not_read_is_not_read():
    def wait():
        raise Waits

    result = ua.StepResult(wait)
    assert repr(result) == "StepResult(not read yet)"
    assert "not read yet" in check_harmless(result._repr_html_()).cells
    with pytest.raises(Waits):
        result.applied  # noqa: B018


def test_a_step_result_that_was_read_shows_its_values():
    result = ua.StepResult(lambda: StepValues(False, True, "non_finite", 8.0, 4.0))
    assert result.applied is False
    shown = "StepResult(applied=False, found_inf=True, reason='non_finite', scale=8.0, next_scale=4.0)"
    assert repr(result) == shown
    cells = check_harmless(result._repr_html_()).cells
    assert dict(zip(cells[1::2], cells[2::2], strict=True)) == {
        "applied": "False", "found_inf": "True", "reason": "non_finite", "scale": "8.0", "next_scale": "4.0",
    }  # fmt: skip


def test_a_plan_shows_its_rows(session):
    plan = session(policy="mixed_bfloat16").explain()
    assert "toy" in repr(plan)
    assert f"{len(plan.rows)} rows" in repr(plan)
    cells = check_harmless(plan._repr_html_()).cells
    assert cells[1:6] == ["setting", "value", "native", "effect", "note"]
    found = [tuple(cells[i : i + 5]) for i in range(6, len(cells), 5)]
    assert found == [(row.setting, row.value, row.native, row.effect, row.note) for row in plan]


def test_what_others_wrote_is_escaped():
    plan = Plan(HOSTILE, (PlanRow(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),))
    policy = ua.Policy(layer_overrides={HOSTILE.replace(";", ""): "float32"})
    for html in (plan._repr_html_(), policy._repr_html_(), table_html(HOSTILE, [(HOSTILE, HOSTILE)], [HOSTILE])):
        page = check_harmless(html)
        assert "\u202e" not in html
        assert "\x1b" not in html
        assert any("<img src=x onerror=" in cell and "\\u202e" in cell for cell in page.cells)


@pytest.mark.parametrize(
    "policy",
    ["float32", "mixed_float16", "p=float32,c=float16,o=float16;keep_norm_float32=false;ops=exp:widest",
     "mixed_bfloat16;loss_scale=dynamic(initial_scale=8.0);layers=head.*:float32"],
)  # fmt: skip
def test_a_policys_repr_makes_it_again(policy):
    made = ua.Policy.parse(policy)
    assert eval(repr(made), {"Policy": ua.Policy}) == made
    cells = check_harmless(made._repr_html_()).cells
    assert dict(zip(cells[1::2], cells[2::2], strict=True))["compute_dtype"] == made.compute_dtype


@pytest.mark.parametrize("scale", [ua.NoLossScale(), ua.StaticLossScale(8.0), ua.DynamicLossScale(growth_interval=3)])
def test_a_loss_scales_repr_makes_it_again(scale):
    assert eval(repr(scale), vars(ua)) == scale
    cells = check_harmless(scale._repr_html_()).cells
    assert cells[0] == type(scale).__name__
    assert all(str(value) in cells for value in scale.to_dict().values())


def test_names_of_types_are_those_that_are_known():
    assert set(get_args(PolicyName)) == {*PRESETS, *BLOCK_POLICIES}
    assert {"torch", "tensorflow", "mxnet"} == set(get_args(BackendName)) <= set(ua.available_backends())
    assert set(get_args(names.CompileMode)) == set(COMPILE_MODES)
    assert set(get_args(names.TuningName)) == set(TUNING_PRESETS)
    assert set(get_args(names.ArrayDtype)) == set(ARRAY_DTYPES)
    assert set(get_args(names.Dtype)) == set(DTYPES.values())
    assert set(get_args(names.ComputeDtype)) == set(COMPUTE_DTYPES.values())
    assert set(get_args(names.OpChoice)) == set(OP_CHOICES)
    assert all(parse_loss_scale(name) for name in get_args(names.LossScaleName))
    reasons = {result.APPLIED, result.NON_FINITE, result.NO_GRADIENTS, result.ACCUMULATING, result.DISCARDED}
    assert set(get_args(names.StepReason)) == reasons
