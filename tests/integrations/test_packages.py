"""The package imports no library, and neither does core."""

import subprocess
import sys

LIBRARIES = (
    "lightning", "pytorch_lightning", "transformers", "accelerate", "torch", "wandb", "mlflow", "omegaconf",
    "tensorflow",
)  # fmt: skip


def test_importing_the_package_imports_no_library():
    code = f"import sys, unifiedamp.integrations; print([name for name in {LIBRARIES!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
