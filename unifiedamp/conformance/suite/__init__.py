"""The suite. A test file of a backend's own gets every test under its own ids by::

from unifiedamp.conformance.suite import *  # noqa: F403

AMP_BACKEND = "mine"
"""

import importlib
import pkgutil
from types import FunctionType

__all__ = []


def _is_fixture(value: object) -> bool:
    return hasattr(value, "_pytestfixturefunction")  # before pytest 8.4; since then a fixture is no function


for _module in pkgutil.iter_modules(__path__):
    _tests = vars(importlib.import_module(f"{__name__}.{_module.name}"))
    _own = {name: value for name, value in _tests.items() if getattr(value, "__module__", "") == _tests["__name__"]}
    _marks = _tests.get("pytestmark")
    for _name, _value in _own.items():
        if not _name.startswith("test_") and isinstance(_value, FunctionType | type) and not _is_fixture(_value):
            continue  # a helper, which its own module finds; what is left are fixtures
        if _name in __all__:
            raise ImportError(f"two files of {__name__} have a {_name!r}: importing * would lose one of them")
        if _marks is not None and _name.startswith("test_"):
            _value = _marks(_value)
        globals()[_name] = _value
        __all__ += [_name]
