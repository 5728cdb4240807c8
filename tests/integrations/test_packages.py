"""The package imports no library, and neither does core."""

import importlib.util
import os
import subprocess
import sys

import pytest

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
