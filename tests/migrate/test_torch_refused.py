"""Torch scripts that are refused, each for all of its true reasons; nothing of them is changed."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst")
from migrating import migrated

APEX = """\
import torch
from apex import amp

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
"""
APEX_STEP = """\
loss = model(torch.ones(2, 2)).sum()
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
"""
TORCH = """\
import torch
from torch.cuda.amp import GradScaler, autocast

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler()
"""
TORCH_STEP = """\
with autocast():
    loss = model(torch.ones(2, 2)).sum()
scaler.scale(loss).backward()
"""
OTHER_FUNCTION = """\
def run(loader, model, optim):
    for x in loader:
        loss = model(x).sum()
        with amp.scale_loss(loss, optim) as scaled_loss:
            scaled_loss.backward()
        optim.step()
"""
INSIDE = APEX_STEP + "    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)\n    optimizer.step()\n"
MICRO = """\
for i, x in enumerate([1, 2]):
    loss = model(torch.ones(2, 2)).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    norms = [p.grad.norm() for p in model.parameters()]
    if (i + 1) % 2 == 0:
        optimizer.step()
"""
APEX_AGAIN = """\
critic = torch.nn.Linear(2, 1)
critic = amp.initialize(critic, opt_level="O2")
"""
IN_REGION = """\
with autocast():
    loss = model(torch.ones(2, 2)).sum()
    scaler.scale(loss).backward()
    print(model(torch.zeros(2, 2)))
scaler.step(optimizer)
scaler.update()
"""
KEPT = """\
class Trainer:
    def __init__(self, model, optimizer, config, use_amp, half):
        self.model, self.optimizer = model, optimizer
        self.scaler = GradScaler(enabled=use_amp)
        self.ctx = autocast(enabled=use_amp and half)

    def fit(self):
        with self.ctx:
            loss = self.model(torch.ones(2, 2)).sum()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
OTHER_SETTINGS = """\
large = len("x") > 1
if large:
    scaler = GradScaler()
else:
    scaler = GradScaler(init_scale=1024.0)"""
ON_OR_OFF = 'half = len("x") > 1\nscaler = GradScaler() if half else GradScaler(enabled=False)'
REGION_APART = TORCH_STEP.replace("with autocast():", "regions = [autocast()]\nwith regions[0]:")
REGION_GIVEN = """\
def region(dtype):
    return autocast(dtype=dtype)


dtype = torch.bfloat16
""" + TORCH_STEP.replace("autocast()", "region(torch.float16)")
LATE = """\
for epoch in range(2):
    loss = torch.ones(1)
scaler.scale(loss).backward()
scaler.step(optimizer)
model2 = torch.nn.Linear(2, 2)
"""
TUNE_BOTH = """\


def tune(x):
    with autocast():
        loss = model(torch.ones(3, 2)).sum()
    if fp16:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    optimizer.step()
"""
BESIDE = """\
with autocast():
    loss = model(torch.ones(2, 2)).sum()
if fp16:
    scaler.scale(loss).backward()
else:
    loss.backward()
"""
TUNE = """\


def tune(x):
    with autocast():
        loss = model(torch.ones(3, 2)).sum()
    scaler.scale(loss).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (APEX + OTHER_FUNCTION, [(10, "optim is not known to be an optimizer passed to amp.initialize"),
                                 (10, "no call of the model was found")]),
        (APEX + INSIDE, [(10, "clip_grad_norm_(amp.master_params(optimizer), 1.0) inside amp.scale_loss"),
                         (11, "optimizer.step() inside amp.scale_loss")]),
        (TORCH + REGION_GIVEN + "scaler.step(optimizer)\n", [(8, "autocast(dtype=dtype)` outside a with statement")]),
        (APEX + MICRO, [(11, "after each micro-batch")]),
        (APEX + APEX_STEP + "optimizer.step(lambda: 0)\n", [(10, "optimizer.step(lambda: 0)")]),
        (APEX + APEX_STEP, [(8, "no step of optimizer was found")]),
        (APEX + "print(amp._amp_state.opt_properties)\n@amp.half_function\ndef f(x):\n    return x\n",
         [(7, "_amp_state"), (8, "amp.half_function")]),
        (APEX.replace("model, optimizer = amp.i", "trained = amp.i") + APEX_STEP + "optimizer.step()\n",
         [(6, "amp.initialize with other results")]),
        (APEX + APEX_STEP + "optimizer.step()\n" + "scaler = torch.cuda.amp.GradScaler()\n",
         [(11, "a GradScaler beside apex.amp.initialize")]),
        (TORCH + IN_REGION, [(9, "inside amp.autocast()")]),
        (TORCH.replace("scaler = GradScaler()\n", "") + KEPT, [(10, "depends on half, use_amp")]),
        (TORCH.replace("scaler = GradScaler()\n", "") + KEPT + "print(Trainer.ctx)\n",
         [(10, "outside a with statement")]),
        (APEX + APEX_STEP + "loss.backward()\noptimizer.step()\n",
         [(10, "loss.backward() behind the scaled backward")]),
        (TORCH.replace("scaler = GradScaler()", OTHER_SETTINGS) + TORCH_STEP + "scaler.step(optimizer)\n",
         [(10, "GradScaler(init_scale=1024.0), and GradScaler() elsewhere")]),
        (TORCH.replace("scaler = GradScaler()", ON_OR_OFF) + TORCH_STEP + "scaler.step(optimizer)\n",
         [(7, "GradScaler(enabled=False), and GradScaler() elsewhere")]),
        (TORCH + REGION_APART + "scaler.step(optimizer)\nscaler.update()\n", [(7, "outside a with statement")]),
        (TORCH + TORCH_STEP + "scaler.step(optimizer)\nscaler.update()\nsave(scaler)\nlog(scaler._scale)\n",
         [(12, "the scaler is passed to save"), (13, "scaler._scale")]),
        (TORCH + TORCH_STEP.replace("autocast()", "autocast(dtype=pick())") + "scaler.step(optimizer)\n",
         [(7, "known only when the program runs")]),
        (TORCH + TORCH_STEP.replace("backward()", "backward(create_graph=True)") + "r = scaler.step(optimizer)\n",
         [(9, "create_graph=True"), (10, "the result of scaler.step(optimizer) is used")]),
        (TORCH + TORCH_STEP + "scaler.step(optimizer)\nscaler = None\n", [(11, "assigned twice")]),
        (APEX, [(6, "nothing here scales a loss for optimizer")]),
        (APEX.replace("model, optimizer = amp.initialize(model, optimizer,",
                      "other = torch.optim.SGD([w], lr=0.1)\n"
                      "model, [optimizer, other] = amp.initialize(model, [optimizer, other],"),
         [(7, "nothing here scales a loss for optimizer and other")]),
        (APEX + APEX_AGAIN + APEX_STEP + "optimizer.step()\n", [(8, "again, with other settings")]),
        (TORCH + TORCH_STEP.replace("autocast()", "autocast(**region(model))") + "scaler.step(optimizer)\n",
         [(7, "whose arguments cannot be seen")]),
        (TORCH.replace("scaler = GradScaler()", "def make():\n    return GradScaler()"),
         [(7, "make returns a GradScaler, and other code steps it")]),
        (TORCH + LATE, [(6, "no autocast region where the GradScaler can be seen")]),
    ],
)  # fmt: skip
def test_all_reasons_are_given_by_line(text, wanted):
    done = migrated(text)
    assert not done.changed, done.diff()
    blocking = [found for found in done.findings if found.blocks]
    for line, what in wanted:
        assert any(found.line == line and what in found.what for found in blocking), (line, what, blocking)
    assert {found.line for found in blocking} == {line for line, _ in wanted}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (TORCH + TORCH_STEP + "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)\n", 10,
         "gradients were still scaled"),
        (TORCH + BESIDE + "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)\n", 13,
         "gradients were still scaled"),
        (TORCH + TORCH_STEP + "scaler.step(optimizer)\n" + TUNE, 17, "applied scaled gradients"),
        (TORCH + TORCH_STEP + "scaler.step(optimizer)\n" + TUNE_BOTH, 20, "applied scaled gradients"),
    ],
)  # fmt: skip
def test_what_the_old_code_did_wrong_is_said(text, line, what):
    done = migrated(text)
    assert done.changed, done.findings
    assert any(found.line == line and what in found.what and not found.blocks for found in done.findings), done.findings


@pytest.mark.parametrize("line", ["step = step(model)", "step, wrap = wrap(step), step(wrap)"])
def test_a_variable_made_of_itself(line):
    """``step = step(...)`` beside a class that can be called is no endless question for its class."""
    text = TORCH + f"class Call:\n    def __call__(self):\n        pass\n\n\n{line}\nstep()\n{TORCH_STEP}"
    assert migrated(text + "scaler.step(optimizer)\n").changed


def test_an_optimizer_of_bare_tensors():
    made = "log_alpha = torch.zeros(1, requires_grad=True)\nother = torch.optim.Adam([log_alpha], lr=0.1)\n"
    text = TORCH + made + TORCH_STEP + "scaler.step(optimizer)\n" + TORCH_STEP + "scaler.step(other)\n"
    done = migrated(text)
    assert not done.changed
    assert any("other trains [log_alpha], of no prepared model" in found.what for found in done.findings)


def test_a_scaler_made_under_a_condition_on_itself():
    made = "scaler = None\nif scaler is None:\n    scaler = GradScaler()\n    print(scaler)\n"
    done = migrated(TORCH.replace("scaler = GradScaler()\n", made) + TORCH_STEP + "scaler.step(optimizer)\n")
    assert not done.changed
    assert any("under a condition on itself" in found.what for found in done.findings)


def test_a_backward_pass_with_keywords_from_elsewhere():
    """``loss.backward(**kwargs)`` passes the session by, as ``loss.backward()`` does."""
    text = APEX + "def run(kwargs):\n" + "".join(f"    {line}\n" for line in APEX_STEP.splitlines())
    done = migrated(text + "    loss.backward(*kwargs)\n    optimizer.step()\n")
    assert done.changed  # backward(gradient): no loss
    done = migrated(text + "    loss.backward(**kwargs, inputs=[])\n    optimizer.step()\n")
    assert not done.changed


def test_functions_registered_with_apex():
    """torch's autocast runs einsum in half precision by itself; of sigmoid it does not say what it runs in."""
    start = "model, optimizer = amp.initialize"
    known = APEX.replace(start, f'amp.register_half_function(torch, "einsum")\n{start}')
    done = migrated(known + APEX_STEP + "optimizer.step()\n")
    assert done.changed
    assert b"einsum" not in done.after
    other = APEX.replace(start, f'amp.register_float_function(torch, "sigmoid")\n{start}')
    done = migrated(other + APEX_STEP + "optimizer.step()\n")
    assert not done.changed
    assert any("op_overrides" in found.write for found in done.findings)


ELIF = """\
import torch


class Trainer:
    def __init__(self, model, precision):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = None
        if precision == "fp16":
            self.dtype = torch.float16
            self.scaler = torch.cuda.amp.GradScaler()
        elif precision == "bf16":
            self.dtype = torch.bfloat16

    def step(self, x):
        with torch.autocast("cuda", dtype=self.dtype):
            loss = self.model(x).sum()
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
"""


def test_a_scaler_in_one_of_several_branches():
    """Without a session in the branch of bfloat16, the class would fail there, or compute in float32."""
    done = migrated(ELIF)
    assert not done.changed
    assert [found.line for found in done.findings if "one branch of an if with elif" in found.what] == [11]


APEX_ELIF = """\
import torch
from apex import amp


class Trainer:
    def __init__(self, model, precision):
        self.model, self.precision = model, precision
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if precision == "apex":
            self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O1")
        elif precision == "bf16":
            self.model = self.model.bfloat16()

    def step(self, x):
        loss = self.model(x).sum()
        if self.precision == "apex":
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        self.optimizer.step()
"""


def test_a_session_that_a_class_makes_on_some_paths():
    done = migrated(APEX_ELIF)
    assert not done.changed
    assert [found.line for found in done.findings if "may not exist behind __init__" in found.what] == [10]


def test_a_scaler_that_other_code_makes():
    """The reason is that scaler, not the regions, which go on working."""
    text = TORCH.replace("scaler = GradScaler()", "scaler = make_scaler()").replace("GradScaler, ", "")
    done = migrated("from helpers import make_scaler\n" + text + TORCH_STEP + "scaler.step(optimizer)\n")
    assert not done.changed
    assert [found.line for found in done.findings if "made by code that is not here" in found.what] == [10]


def test_models_that_only_predict():
    text = "import torch\nfrom apex import amp\n\nmodel, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n"
    text += "model.eval()\nother.eval()\n[model, other] = amp.initialize([model, other], opt_level='O2')\n"
    done = migrated(text + "print(model(torch.ones(2)), other(torch.ones(2)))\n")
    assert not done.changed
    assert ["nothing here computes with model in a region" in found.what for found in done.findings] == [True]
