"""Loops over torch.amp, migrated, give the losses that they gave."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")
from migrating import identifiers, listing, migrated, old_text, replaced, run

# The same kernels run in the same order on the same numbers; float32 rounding is all that may differ.
SAME = {"rel": 1e-6, "abs": 1e-7}
# torch.cuda.amp turns itself off without a GPU: there the old code is torch's own, told that the device is the CPU.
ON_CPU = """\
from functools import partial
GradScaler = partial(torch.amp.GradScaler, "cpu")
autocast = partial(torch.autocast, "cpu", dtype=torch.float16)
custom_fwd = partial(torch.amp.custom_fwd, device_type="cpu")
custom_bwd = partial(torch.amp.custom_bwd, device_type="cpu")"""
CUDA = {
    "torch_cuda_amp": [("from torch.cuda.amp import GradScaler, autocast", ON_CPU)],
    "torch_cuda_amp_clip": [
        ("from torch.cuda.amp import GradScaler, autocast, custom_bwd, custom_fwd", ON_CPU),
        ("@custom_bwd", "@custom_bwd()"),
    ],
}


@pytest.mark.parametrize("name", ["torch_amp", "torch_amp_functions", "torch_amp_gan", *CUDA])
@pytest.mark.filterwarnings("ignore:`torch.cuda.amp:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")
def test_the_losses_are_those_of_the_old_code(name):
    done = migrated(listing(name))
    text = done.after.decode()
    assert not {word for word in identifiers(text) if "scaler" in word.lower()}
    # The session takes a GPU by itself, and this is about the losses, so both run on the CPU.
    text = text.replace(
        'ua.Amp("torch", policy="mixed_float16")', 'ua.Amp("torch", policy="mixed_float16", device="cpu")'
    )
    text = text.replace('"torch",\n', '"torch", device="cpu",\n') if "device=" not in text else text
    old, new = run(replaced(listing(name), *CUDA.get(name, ())), 6), run(text, 6)
    assert len(set(old)) > 3
    assert new == pytest.approx(old, **SAME)


def test_a_region_where_the_session_cannot_be_seen_is_left_and_listed():
    done = migrated(listing("torch_amp_functions"))
    (found,) = done.findings
    assert (found.line, found.blocks) == (27, False)
    assert listing("torch_amp_functions").splitlines()[26].strip().startswith("with torch.no_grad(), autocast(")


START = """\
import torch

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
with torch.autocast("cpu", dtype=torch.float16):
    loss = model(torch.ones(2, 2)).sum()
"""
STEP = "scaler.scale(loss).backward()\nscaler.step(optimizer)\n"
LOOP = "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()\n"


@pytest.mark.parametrize(
    ("rest", "line", "what"),
    [
        ("scaler.scale(loss).backward(inputs=[])\nscaler.step(optimizer)", 8, "inputs=[]"),
        ("scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update(2.0)", 10, "scaler.update(2.0)"),
        ("done = scaler.step(optimizer)", 8, "the result of scaler.step(optimizer) is used"),
        (LOOP + "trainer(scaler)", 11, "the scaler is passed to trainer"),
        (LOOP + "scaler._growth_tracker = 1", 11, "scaler._growth_tracker"),
        (LOOP + "scaler._lazy_init_scale_growth_tracker('cpu')", 11, "_lazy_init_scale_growth_tracker"),
        (LOOP + "scaler = None", 11, "assigned twice"),
        (
            STEP + "print(scaler.get_scale())\nscaler.update()",
            10,
            "read between",
        ),
        ("scaler.scale(loss).backward()", 5, "whose step is never called"),
        ("penalty = torch.autograd.grad(scaler.scale(loss), [])\n" + LOOP, 8, "more than backward()"),
    ],
)
def test_what_is_not_understood_stays_with_all_that_belongs_to_it(rest, line, what):
    done = migrated(START + rest + "\n")
    assert not done.changed
    (found,) = done.findings
    assert (found.line, found.blocks) == (line, True)
    assert what in found.what
    assert found.write


@pytest.mark.parametrize(
    "made",
    [
        'torch.amp.GradScaler("cpu", 1024.0, 4.0, 0.25, 100)',
        'torch.amp.GradScaler("cpu", 1024.0, growth_interval=100, backoff_factor=0.25, growth_factor=4.0)',
        "torch.cuda.amp.GradScaler(1024.0, 4.0, 0.25, 100)",
        "torch.cuda.amp.GradScaler(1024.0, 4.0, growth_interval=100, backoff_factor=0.25)",
    ],
)
def test_settings_of_the_scaler_by_place_and_by_name(made):
    text = migrated(START.replace('torch.amp.GradScaler("cpu")', made) + LOOP).after.decode()
    (given,) = re.findall(r"DynamicLossScale\((.*?)\)", text)
    assert sorted(part.strip() for part in given.split(",")) == [
        "backoff_factor=0.25", "growth_factor=4.0", "growth_interval=100", "initial_scale=1024.0",
    ]  # fmt: skip


def test_what_torch_clips_by_itself_goes_on_working():
    """Another norm, or other parameters than the optimizer's: torch's own call, on unscaled gradients."""
    clip = "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)\n"
    text = migrated(START + LOOP.replace("scaler.step", f"{clip}scaler.step")).after.decode()
    assert "amp.unscale(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)\n" in text


def test_the_switch_of_a_script_stays():
    text = START.replace('GradScaler("cpu")', 'GradScaler("cpu", enabled=use_amp)').replace(
        "import torch\n", "import torch\nuse_amp = False\n", 1
    )
    text = text.replace("dtype=torch.float16)", "dtype=torch.float16, enabled=use_amp)")
    new = migrated(text + LOOP).after.decode()
    assert 'policy="mixed_float16" if use_amp else "float32"' in new
    space: dict[str, object] = {}
    exec(new, space)
    assert space["amp"].policy.name == "float32"
    assert (space["amp"].loss_scale, space["amp"].applied_steps) == (1.0, 1)


def test_names_that_are_taken_are_not_taken_again():
    text = START + LOOP + "from torch import amp\nua = 1\nprint(amp.is_autocast_available('cpu'), ua)\n"
    new = migrated(text).after.decode()
    assert "amp_session = unifiedamp.Amp(" in new
    exec(new, {})


@pytest.mark.parametrize("line", ["for _, amp in ():", "with open(__file__) as amp:", "def amp():"])
def test_names_that_other_lines_bind_are_taken(line):
    text = START + LOOP + f"def more():\n    {line}\n        pass\n"
    assert "amp_session = ua.Amp(" in migrated(text).after.decode()


KEPT = """\
import torch


class Trainer:
    def __init__(self, model, optimizer, device, mixed):
        self.model, self.optimizer = model, optimizer
        self.device = device
        self.mixed = mixed
        self.scaler = torch.amp.GradScaler("cuda", enabled=mixed and device.type == "cuda")

    def step(self, x):
        with torch.autocast("cuda", enabled=self.mixed and self.device.type == "cuda"):
            loss = self.model(x).sum()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""


def test_a_flag_that_the_object_keeps_is_the_flag_that_it_was_given():
    new = migrated(KEPT).after.decode()
    assert 'policy="mixed_float16" if mixed and device.type == "cuda" else "float32"' in new
    assert "with self.amp.autocast():" in new


def test_a_flag_that_changes_later_is_asked_in_each_region():
    changed = replaced(
        KEPT, ("self.mixed = mixed\n", "self.mixed = mixed\n        self.mixed = self.mixed and ready()\n")
    )
    assert (
        'with self.amp.autocast(enabled=self.mixed and self.device.type == "cuda"):' in migrated(changed).after.decode()
    )


def test_clipping_of_gradients_that_another_method_scaled_is_pointed_at():
    done = migrated(
        replaced(
            KEPT,
            ("    def step(self, x):\n", "    def backward(self, x):\n"),
            (
                "        self.scaler.step(self.optimizer)\n",
                "\n    def step(self, x):\n        self.backward(x)\n        # of this length\n"
                "        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)\n"
                "        self.scaler.step(self.optimizer)\n",
            ),
        )
    )
    assert done.changed
    (found,) = done.findings
    assert (found.line, found.what) == (
        19,
        "gradients were still scaled at `torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)`",
    )


def test_a_scaler_that_is_made_where_none_is_given_under_a_flag_is_refused_with_that_condition():
    done = migrated(
        replaced(
            KEPT,
            ("device, mixed):", "device, mixed, scaler=None):"),
            (
                '        self.scaler = torch.amp.GradScaler("cuda", enabled=mixed and device.type == "cuda")\n',
                "        if mixed:\n            if scaler is None:\n                scaler = torch.amp.GradScaler()\n"
                "            self.scaler = scaler\n",
            ),
        )
    )
    assert not done.changed
    said = {found.line: found.what for found in done.findings if found.blocks}
    assert said[10] == "the GradScaler is made under a condition on itself: if scaler is None"


CHOSEN = """\
import torch
model = torch.nn.Linear(2, 2)
if name == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
elif name == "adam":
    optimizer = torch.optim.Adam(model.parameters())
scaler = torch.cuda.amp.GradScaler()
with torch.cuda.amp.autocast():
    loss = model(torch.ones(2, 2)).sum()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""


@pytest.mark.parametrize("asked", [False, True])
def test_an_optimizer_that_an_elif_chain_makes_is_prepared_where_all_that_follows_needs_it(asked):
    done = migrated(CHOSEN.replace("scaler.step(", "if name in known:\n    scaler.step(") if asked else CHOSEN)
    assert done.changed is not asked
    assert asked is any("may not exist where it is prepared" in found.what for found in done.findings)


@pytest.mark.parametrize("function", ["utils.save_checkpoint", "log"])
def test_code_of_another_file_gets_the_session_for_its_state_alone(function):
    made = "scaler = torch.cuda.amp.GradScaler() if half else None"
    text = replaced(CHOSEN, ("scaler = torch.cuda.amp.GradScaler()", made)) + f"{function}(model, scaler=scaler)\n"
    done = migrated(text)
    assert done.changed is (function != "log")
    (found,) = [one for one in done.findings if "passed to" in one.what]
    assert (found.line, found.blocks) == (13, function == "log")
    if done.changed:
        call = "utils.save_checkpoint(model, scaler=amp if amp.loss_scale_settings.enabled else None)"
        assert call in done.after.decode()


def test_a_loss_that_is_not_scaled_is_listed_and_its_step_is_none_of_scaled_gradients():
    found = migrated(old_text("torch_amp/penalty_not_scaled")).findings
    assert [(one.line, one.what) for one in found] == [
        (21, "penalty.backward() was not scaled by the GradScaler, which scales other losses here")
    ]
