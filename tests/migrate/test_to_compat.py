"""``--to compat``: old calls, imported from ``unifiedamp.compat``; nothing else in the file changes."""

from __future__ import annotations

import ast
import difflib
import importlib

import pytest
from migrating import listing, old_text

from unifiedamp.migrate.engine import migrate

CASES = {
    "from torch.cuda.amp import GradScaler, autocast":
        "from unifiedamp.compat.torch_cuda_amp import GradScaler, autocast",
    "from torch.amp import autocast as cast": "from unifiedamp.compat.torch_cuda_amp import autocast as cast",
    "import torch\nscaler = torch.cuda.amp.GradScaler()":
        "import torch\nfrom unifiedamp.compat import torch_cuda_amp\nscaler = torch_cuda_amp.GradScaler()",
    "from torch.cuda import amp\namp.autocast()": "from unifiedamp.compat import torch_cuda_amp as amp\namp.autocast()",
    "import tensorflow as tf\ntf.keras.mixed_precision.set_global_policy('mixed_float16')":
        "import tensorflow as tf\nfrom unifiedamp.compat import keras2\nkeras2.set_global_policy('mixed_float16')",
    "import tensorflow as tf\nopt = tf.compat.v1.train.experimental.enable_mixed_precision_graph_rewrite(opt)":
        "import tensorflow as tf\nfrom unifiedamp.compat import keras2\n"
        "opt = keras2.enable_mixed_precision_graph_rewrite(opt)",
    "from tensorflow.keras.mixed_precision import experimental as mixed_precision":
        "from unifiedamp.compat.keras2 import experimental as mixed_precision",
    "from apex import amp, optimizers": "from apex import optimizers\nfrom unifiedamp.compat import apex as amp",
    "from apex.parallel import DistributedDataParallel as D": "from apex.parallel import DistributedDataParallel as D",
    "import apex\nm = apex.amp.initialize(m)":
        "from unifiedamp.compat import apex as compat_apex\nm = compat_apex.initialize(m)",
    "from mxnet.contrib.amp import amp": "from unifiedamp.compat import mxnet as amp",
    "from mxnet.contrib import amp": "from unifiedamp.compat import mxnet as amp",
    "import mxnet as mx\nmx.contrib.amp.init()":
        "import mxnet as mx\nfrom unifiedamp.compat import mxnet as compat_mxnet\ncompat_mxnet.init()",
}  # fmt: skip


@pytest.mark.parametrize("old", CASES)
def test_imports_and_uses(old):
    done = migrate("old.py", f"{old}\n".encode(), to="compat")
    assert done.after.decode() == f"{CASES[old]}\n"
    assert not migrate("old.py", done.after, to="compat").changed


NAMES = ["apex_gan", "apex_o1", "keras2_experimental", "keras2_loop", "mxnet_amp", "tf_rewrite", "torch_cuda_amp",
         "torch_amp_gan", "torch_cuda_amp_clip"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_of_a_listing_only_those_lines_change(name):
    old = listing(name).splitlines()
    new = migrate("old.py", listing(name).encode(), to="compat").after.decode().splitlines()
    words = ("import", "amp", "autocast", "GradScaler", "graph_rewrite", "mixed_precision")
    changed = [line for line in difflib.ndiff(old, new) if line.startswith(("-", "+"))]
    assert changed
    assert all(any(word in line for word in words) for line in changed)
    assert "compat" in "\n".join(new)


def test_what_the_facades_lack_is_refused_with_every_line():
    text = "from tensorflow.keras import mixed_precision\nmixed_precision.get(1)\nmixed_precision.other(2)\n"
    done = migrate("old.py", text.encode(), to="compat")
    assert not done.changed
    assert [(found.line, found.blocks) for found in done.findings] == [(2, True), (3, True)]


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "mxnet"])
def test_the_facades_have_what_they_are_said_to_have(framework):
    from unifiedamp.migrate import facades

    here = {"torch": ("torch_cuda_amp", "apex"), "tensorflow": ("keras2", "experimental"), "mxnet": ("mxnet",)}
    if framework != "mxnet":
        pytest.importorskip(framework)
    for facade in {*facades.MODULES.values(), *facades._MEMBERS.values()}:
        if facade.name in here[framework]:
            module = importlib.import_module(f"{facade.package}.{facade.name}")
            assert [name for name in facade.members if not hasattr(module, name)] == []


def test_the_result_is_python_in_a_function_too():
    text = "def f():\n    from apex import amp, optimizers\n    return amp.initialize(1)\n"
    ast.parse(migrate("old.py", text.encode(), to="compat").after)


def test_an_optimizer_that_compat_refuses_is_refused_here_too():
    done = migrate("old.py", old_text("refused/averaged_by_wrapper").encode(), "compat")
    assert not done.changed
    assert [(one.line, "SWA(...) is a wrapper" in one.what) for one in done.findings] == [(13, True)]
    assert migrate("old.py", old_text("refused/larc").encode(), "compat").changed
