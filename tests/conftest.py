"""Every test that takes ``harness`` runs once per installed backend; ``form`` adds the compiled forms."""

from __future__ import annotations

import importlib

import pytest
from toy import plugin as toy_plugin

import unifiedamp as ua
from unifiedamp import plugins

plugins.register("toy", toy_plugin)


def installed() -> list[str]:
    return [name for name, info in ua.available_backends().items() if info.installed]


def load_harness(name: str):
    return importlib.import_module(plugins.load_plugin(name).harness).harness


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--amp-backend", default="all", help="run backend tests on this backend alone")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*features): skipped where the backend's Capabilities lack one of them")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "harness" not in metafunc.fixturenames:
        return
    wanted = metafunc.config.getoption("--amp-backend")
    names = installed() if wanted == "all" else [wanted]
    if "form" not in metafunc.fixturenames:
        metafunc.parametrize("harness", [pytest.param(name, id=name) for name in names], indirect=True)
        return
    pairs = [(name, form) for name in names for form in load_harness(name).forms]
    metafunc.parametrize(
        ("harness", "form"), [pytest.param(n, f, id=f"{n}-{f}") for n, f in pairs], indirect=["harness"]
    )


@pytest.fixture
def harness(request: pytest.FixtureRequest):
    features = [name for mark in request.node.iter_markers("needs") for name in mark.args]
    for name in features:
        support = ua.available_backends()[request.param].capabilities.feature(name)
        if not support:
            pytest.skip(f"{request.param} lacks {name}: {support.reason}")
    return load_harness(request.param)
