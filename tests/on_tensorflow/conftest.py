"""These tests need TensorFlow."""

import importlib.util

if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob = ["test_*.py"]
