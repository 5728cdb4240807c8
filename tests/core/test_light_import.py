"""Importing the package, and asking what is installed, loads nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = [
    "torch",
    "tensorflow",
    "keras",
    "mxnet",
    "numpy",
    "pydantic",
    "matplotlib",
    "tensorboardX",
    "rich",
    "typer",
    "click",
]


def loaded_after(code: str) -> list[str]:
    """Run ``code`` in a fresh interpreter and return which of the heavy modules it has loaded."""
    script = f"{code}\nimport sys\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return run.stdout.split()


@pytest.mark.parametrize(
    "code",
    [
        "import unifiedamp",
        "import unifiedamp as ua; [(i.name, i.installed, i.version) for i in ua.available_backends().values()]",
        "import unifiedamp as ua; ua.Policy.parse('O2'); ua.DynamicLossScale()",
        "import unifiedamp.backend",
    ],
)
def test_loads_nothing_heavy(code):
    assert loaded_after(code) == []


def test_the_probe_sees_what_is_loaded():
    assert loaded_after("import numpy") == ["numpy"]
