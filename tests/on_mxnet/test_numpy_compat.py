"""MXNet is imported on a numpy without the old aliases, and numpy is afterwards as it was."""

import subprocess
import sys

import numpy as np
import pytest

from unifiedamp_mxnet import numpy_compat
from unifiedamp_mxnet.plugin import import_hint, unavailable, unifiedamp_backend

ALIASES = ("bool", "object", "int", "float", "complex", "str")


def in_new_process(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_numpy_is_as_found_after_the_import():
    done = in_new_process(
        "import numpy\n"
        "before = dict(vars(numpy))\n"
        "from unifiedamp_mxnet.numpy_compat import import_mxnet\n"
        "mxnet = import_mxnet()\n"
        "after = dict(vars(numpy))\n"
        f"assert not [name for name in {ALIASES} if (name in before) != (name in after)]\n"
        "assert all(after[name] is before[name] for name in before)\n"
        "print('fine', mxnet.__version__)\n"
    )
    assert done.stdout.startswith("fine"), done.stderr


def test_numpy_is_as_found_after_a_failed_import(monkeypatch):
    before = dict(vars(np))
    monkeypatch.setattr(
        numpy_compat.importlib, "import_module", lambda name: (_ for _ in ()).throw(OSError("broken library"))
    )
    monkeypatch.setattr(sys, "modules", {key: value for key, value in sys.modules.items() if key != "mxnet"})
    with pytest.raises(OSError, match="broken library"):
        numpy_compat.import_mxnet()
    assert dict(vars(np)) == before


def test_mxnet_finds_the_aliases_long_after_the_import():
    mx = numpy_compat.import_mxnet()
    x = mx.np.array([1.0, 2.0, 3.0])
    assert x[np.array([True, False, True])].asnumpy().tolist() == [1.0, 3.0]
    assert mx.np.full_like(x, 1, dtype=None).asnumpy().tolist() == [1.0, 1.0, 1.0]
    assert "bool" not in vars(np) or np.__version__.startswith("2")


def test_a_python_without_distutils_is_told_what_brings_it_back():
    error = ModuleNotFoundError("No module named 'distutils'", name="distutils")
    assert "pip install setuptools" in import_hint(error)
    assert import_hint(ModuleNotFoundError("No module named 'graphviz'", name="graphviz")) == ""
    assert import_hint(OSError("libquadmath")) == ""


def test_pythons_that_mxnet_does_not_run_under():
    assert unavailable((3, 11)) == unavailable((3, 12)) == unifiedamp_backend().unavailable == ""
    assert "does not run under Python 3.13" in unavailable((3, 13))
    assert "use Python 3.11 or 3.12" in unavailable((3, 14))
