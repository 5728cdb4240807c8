"""Each file needs the framework whose retired interface it tests."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

NEEDS = {
    "torch": ["test_torch_cuda_amp*.py", "test_apex*.py"],
    "tensorflow": ["test_keras2*.py", "test_tf_*.py"],
    "mxnet": ["test_mxnet*.py"],
}
collect_ignore_glob = [
    name for framework, names in NEEDS.items() if not importlib.util.find_spec(framework) for name in names
]
