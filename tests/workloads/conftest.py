"""``backend`` is every installed backend that the example has models for, one by one; ``other`` likewise."""

from __future__ import annotations

import functools
import importlib.util

import pytest

import unifiedamp as ua


@functools.cache
def installed() -> list[str]:
    infos = ua.available_backends()
    found = [name for name, info in infos.items() if info.installed]
    return [name for name in found if importlib.util.find_spec(f"examples.models.{name}_models")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = metafunc.config.getoption("--amp-backend", default="all")
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", installed() if wanted == "all" else [wanted])
    if "other" in metafunc.fixturenames:
        metafunc.parametrize("other", installed())
