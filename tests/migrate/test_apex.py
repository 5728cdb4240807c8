"""Apex listings, migrated, give the losses that they give through ``unifiedamp.compat.apex``."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch")
from migrating import identifiers, listing, migrated, replaced, run

import unifiedamp as ua

NAMES = ["apex_accumulate", "apex_gan", "apex_o1", "apex_o2", "apex_resume"]
HERE = importlib.util.find_spec("unifiedamp.compat") and importlib.util.find_spec("unifiedamp.compat.apex")
# The facade runs the same kernels in the same order on the same numbers; float32 rounding is all that may differ.
SAME = {"rel": 1e-6, "abs": 1e-7}


@pytest.mark.skipif(not HERE, reason="unifiedamp.compat.apex is not there")
@pytest.mark.parametrize("name", NAMES)
def test_the_losses_are_those_of_the_old_code(name):
    text = migrated(listing(name)).after.decode()
    old = run(replaced(listing(name), ("from apex import amp", "from unifiedamp.compat import apex as amp")), 6)
    assert run(text, 6) == pytest.approx(old, **SAME)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_apex_is_left_and_the_loss_falls(name):
    text = migrated(listing(name)).after.decode()
    assert not identifiers(text) & {"apex", "initialize", "master_params", "delay_unscale", "loss_id"}
    losses = run(text, 8)
    assert losses[-1] < losses[0]


START = """\
import torch
from apex import amp
model, optimizer = amp.initialize(model, optimizer, {settings})
"""
LOOP = """\
loss = model(torch.ones(2, 2)).sum()
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ("opt_level='O2'", "ua.Amp(\"torch\", policy='O2')"),
        ("opt_level=args.level, loss_scale=args.scale", 'ua.Amp("torch", policy=args.level, loss_scale=args.scale)'),
        ('opt_level="O1", loss_scale="dynamic"', 'ua.Amp("torch", policy="O1")'),
        ('opt_level="O1", loss_scale="128"', 'ua.Amp("torch", policy="O1", loss_scale=128.0)'),
        ('opt_level="O1", enabled=args.amp', 'ua.Amp("torch", policy="O1" if args.amp else "O0")'),
        ('opt_level="O1", max_loss_scale=2.**16, verbosity=0', "loss_scale=ua.DynamicLossScale(max_scale=2.**16)"),
        ('opt_level="O2", keep_batchnorm_fp32="True"', 'ua.Amp("torch", policy="O2")'),
        ('opt_level="O2", keep_batchnorm_fp32=False', 'ua.Amp("torch", policy="O2;keep_norm_float32=false")'),
        ('opt_level="O3", keep_batchnorm_fp32=True', 'ua.Amp("torch", policy="O3;keep_norm_float32=true")'),
        ('opt_level="O3", keep_batchnorm_fp32=False', 'ua.Amp("torch", policy="O3")'),
        (
            "opt_level=args.level, keep_batchnorm_fp32=args.bn",
            'policy=args.level if args.bn is None else f"{args.level};keep_norm_float32={args.bn}"',
        ),
        (
            'opt_level="O3", keep_batchnorm_fp32=args.bn',
            'policy="O3" if args.bn is None else f"O3;keep_norm_float32={args.bn}"',
        ),
        (
            'opt_level="O3", keep_batchnorm_fp32=args.bn, enabled=args.amp',
            'policy=("O3" if args.bn is None else f"O3;keep_norm_float32={args.bn}") if args.amp else "O0"',
        ),
        ('opt_level="O3", loss_scale=1.0, max_loss_scale=8.0', 'ua.Amp("torch", policy="O3")'),
        ('opt_level="O0", loss_scale="dynamic"', 'ua.Amp("torch", policy="O0", loss_scale="dynamic")'),
    ],
)
def test_settings(settings, wanted):
    assert wanted in migrated(START.format(settings=settings) + LOOP).after.decode()


@pytest.mark.parametrize("given", ["None", "True", "False", "'True'", "'False'"])
@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_a_flag_for_batch_norm_reaches_the_policy(level, given):
    settings = f"opt_level=level, keep_batchnorm_fp32={given}"
    text = migrated(START.format(settings=settings.replace(given, "bn")) + LOOP).after.decode()
    line = next(one for one in text.splitlines() if "ua.Amp(" in one)
    code = line.partition("policy=")[2].removesuffix(")")
    policy = ua.Policy.parse(eval(code, {"level": level, "bn": eval(given)}))
    kept = {"None": level != "O3"}.get(given, "True" in given)
    assert (policy.keep_norm_float32, policy.name) == (kept, ua.Policy.parse(level).name)


def test_a_loss_scale_that_may_come_with_o3_is_said():
    done = migrated(START.format(settings="opt_level=args.level, loss_scale=args.scale") + LOOP)
    assert [(one.line, 'may come with opt_level="O3"' in one.what) for one in done.findings] == [(3, True)]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ('opt_level="O3", loss_scale=128.0', "a session scales no losses for parameters in float16"),
        ('opt_level="O3", loss_scale="dynamic"', "a session scales no losses for parameters in float16"),
        ("opt_level=args.level, keep_batchnorm_fp32=asked()", "keep_batchnorm_fp32=asked() with opt_level=args.level"),
    ],
)
def test_settings_that_no_session_has(settings, what):
    done = migrated(START.format(settings=settings) + LOOP)
    assert not done.changed
    assert [(one.line, what in one.what) for one in done.findings] == [(3, True)]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("@amp.half_function\ndef f(x):\n    return x\n", 4, "amp.half_function"),
        ("with amp.disable_casts():\n    pass\n", 4, "amp.disable_casts"),
        ("with amp.scale_loss(f(model), optimizer) as s:\n    s.backward()\n", 4, "the loss f(model) is not assigned"),
        ("models, optimizers = amp.initialize(models, optimizers)\n", 4, "a list in models"),
        ("params = list(amp.master_params())\n", 4, "amp.master_params()"),
    ],
)
def test_what_is_not_understood_stays_with_all_that_belongs_to_it(text, line, what):
    done = migrated(START.format(settings='opt_level="O1"') + text)
    assert not done.changed
    (found,) = done.findings
    assert (found.line, found.blocks) == (line, True)
    assert what in found.what


@pytest.mark.parametrize(
    ("test", "asked"),
    [("args.amp and optimizer is not None", True), ("optimizer is not None", False), ("args.amp", False)],
)
def test_a_flag_beside_a_question_for_the_optimizer_is_refused(test, asked):
    text = START.format(settings='opt_level="O1"')
    lines = [*text.splitlines()[:2], f"if {test}:", f"    {text.splitlines()[2]}"]
    done = migrated("\n".join([*lines, LOOP]))
    assert done.changed is not asked
    said = [(one.line, "asks whether there is something to prepare" in one.what) for one in done.findings if asked]
    assert said == [(3, True)] * asked


@pytest.mark.parametrize(
    ("rest", "said"), [("", ""), ("path.append('apex')", "said whether"), ("import apex.optimizers", "also for what")]
)
def test_a_flag_that_an_import_of_amp_sets_is_pointed_at_where_more_stands_there(rest, said):
    tried = f"try:\n    {rest}\n    from apex import amp\n    HAS = True\nexcept ImportError:\n    HAS = False\n"
    done = migrated(START.format(settings='opt_level="O1"').replace("from apex import amp\n", tried) + LOOP)
    assert done.changed
    assert [(one.line, said in one.what) for one in done.findings] == ([(2, True)] if said else [])


@pytest.mark.parametrize("scaled", [False, True])
def test_a_loss_that_apex_did_not_scale_is_said(scaled):
    plain = LOOP.replace("with amp.scale_loss(loss, optimizer) as scaled_loss:\n    scaled_loss", "loss")
    loop = LOOP.replace("optimizer.step()\n", "optimizer.step()\n" + LOOP) if scaled else plain
    done = migrated(START.format(settings='opt_level="O2"') + loop)
    assert "amp.scale_loss(loss, optimizer)" in done.after.decode()
    said = [(one.line, one.what) for one in done.findings]
    assert said == ([] if scaled else [(5, "loss.backward() was not scaled by Apex")])


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_other_code_that_computes_on_from_the_model_is_pointed_at_where_apex_cast_the_model_alone(level):
    loop = LOOP.replace("model(torch.ones(2, 2)).sum()", "contrast(model, torch.ones(2, 2))")
    done = migrated(START.format(settings=f'opt_level="{level}"') + "from steps import contrast\n" + loop)
    assert done.changed
    assert [(one.line, "contrast gets model" in one.what) for one in done.findings] == ([(5, True)] * (level == "O2"))


def test_code_that_makes_no_session_is_told_where_it_needs_one():
    done = migrated(
        "from apex import amp\n\ndef step(loss, opt):\n    with amp.scale_loss(loss, opt) as s:\n        s.backward()\n"
    )
    assert not done.changed
    assert [found.line for found in done.findings] == [4]


STEP = "def step(self, loss):\n    with {amp}.scale_loss(loss, self.optimizer) as s:\n        s.backward()\n"


@pytest.mark.parametrize("text", ["from .utils import *\n" + STEP.format(amp="amp"), STEP.format(amp="self.apex.amp")])
def test_calls_of_an_amp_that_the_file_does_not_import_are_listed(text):
    done = migrated(text)
    assert not done.changed
    assert ["does not import amp" in found.what for found in done.findings] == [True]
