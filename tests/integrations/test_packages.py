"""The package imports no library, and neither does core."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARIES = (
    "lightning", "pytorch_lightning", "transformers", "accelerate", "torch", "wandb", "mlflow", "omegaconf",
    "tensorflow",
)  # fmt: skip


def test_importing_the_package_imports_no_library():
    code = f"import sys, unifiedamp.integrations; print([name for name in {LIBRARIES!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(
    os.environ.get("UNIFIEDAMP_TEST_ENVIRONMENT") != "integrations", reason="other environments lack some"
)
def test_no_library_is_missing_where_they_are_tested():
    """Else the tests of a trainer would be left out in silence."""
    assert [name for name in LIBRARIES if name != "tensorflow" and importlib.util.find_spec(name) is None] == []


def test_the_extras_name_the_versions_that_the_integrations_need():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = dict(re.findall(r"'([a-z-]+)>=([\d.]+)'", repr([each for extra in extras.values() for each in extra])))
    found = {}
    for module in (ROOT / "unifiedamp" / "integrations").glob("*.py"):
        found |= dict(
            re.findall(r'^ *require\("([a-z-]+)", "([\d.]+)"', module.read_text(encoding="utf-8"), re.MULTILINE)
        )
    assert {"lightning", "transformers", "accelerate", "wandb", "mlflow"} <= set(found)
    assert found["lightning"] == found.pop("pytorch-lightning")
    assert found["mlflow"] == named["mlflow-skinny"]
    for name in set(found) - {"mlflow"}:
        assert found[name] == named[name], name
