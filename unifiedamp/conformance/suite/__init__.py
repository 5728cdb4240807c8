"""The suite. A test file of a backend's own gets every test under its own ids by::

from unifiedamp.conformance.suite import *  # noqa: F403

AMP_BACKEND = "mine"
"""

import importlib
import pkgutil

__all__ = []

for _module in pkgutil.iter_modules(__path__):
    _tests = vars(importlib.import_module(f"{__name__}.{_module.name}"))
    _own = {name: value for name, value in _tests.items() if getattr(value, "__module__", "") == _tests["__name__"]}
    _marks = _tests.get("pytestmark")
    for _name, _value in _own.items():
        if _marks is not None and _name.startswith("test_"):
            _value = _marks(_value)
        globals()[_name] = _value
        __all__ += [_name]
