"""Registers the toy backend, so that suite and core tests have a backend that needs no framework."""

import gc
import os

import effort
import pytest
import toy.registered  # noqa: F401
from selection import (
    ENVIRONMENTS,
    FRAMEWORKS,
    alike,
    is_further_form,
    is_proved_elsewhere,
    is_quick,
    is_repeated,
    place,
)

from unifiedamp import PolicyNotSupportedError
from unifiedamp.config import plugins
from unifiedamp.conformance.plugin import peers, refused_here
from unifiedamp.conformance.sample import sampled

#: Folders of tests that only one framework can run, where it is not installed.
collect_ignore = [f"on_{name}" for name in FRAMEWORKS if not plugins.is_installed(name)]


class OldObjects:
    """What outlives a file of tests is not looked through at each later collection.

    Frameworks keep graphs, traces and compiled code: late in a process of all three, one collection takes seconds, and
    Keras and many tests ask for one. What has died since is collected after every 20th file.
    """

    def __init__(self):
        self._files = 0

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item, nextitem):
        if nextitem is None or nextitem.path == item.path:
            return
        self._files += 1
        if self._files % 20 == 0:
            gc.unfreeze()
        gc.collect()
        gc.freeze()


def pytest_configure(config):
    """Refuse an environment that lacks a framework: its tests would be left out in silence."""
    config.pluginmanager.register(OldObjects())  # a hook of this file would serve the tests of this folder alone
    environment = os.environ.get("UNIFIEDAMP_TEST_ENVIRONMENT", "")
    missing = [name for name in ENVIRONMENTS.get(environment, ()) if not plugins.is_installed(name)]
    if missing:
        raise pytest.UsageError(f"environment {environment!r} lacks {', '.join(missing)}")


def pytest_addoption(parser):
    parser.addoption(
        "--proved-elsewhere",
        action="store_true",
        help="leave out what the main environment proves: the toy backend, features that a backend does not declare",
    )
    parser.addoption(
        "--proved-backend", action="append", default=[], help="it proves this backend too: run its own folder alone"
    )
    parser.addoption("--sample-suite", action="store_true", help="run one case of each test of the suite")
    parser.addoption(
        "--sample-backends",
        action="store_true",
        help="run the commands' cases on one backend each, and of tests of workloads one case on each backend",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what is proved elsewhere, and put tests of one framework together."""
    kept = list(items)
    if config.getoption("--proved-elsewhere"):
        kept = [item for item in kept if not is_proved_elsewhere(item, config.getoption("--proved-backend"))]
        kept = sampled(kept, lambda item: 3 * is_further_form(item))
    if effort.QUICK:
        kept = [item for item in kept if is_quick(item)]
    if config.getoption("--sample-suite"):
        kept = sampled(kept, lambda item: int(is_repeated(item)))
    if config.getoption("--sample-backends"):
        kept = sampled(kept, lambda item: int(bool(alike(item))), alike)
    chosen = set(map(id, kept))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
    items[:] = sorted(kept, key=place)


def pytest_collection_finish():
    gc.freeze()  # what was imported so far is not looked through at each collection


def skip_what_is_refused_here():
    """Skip what needs a policy that a backend declares not to run on this machine: MXNet's bfloat16 wants AVX512."""
    try:
        return (yield)
    except PolicyNotSupportedError as error:
        if reason := refused_here(error, peers()):
            pytest.skip(reason)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    return (yield from skip_what_is_refused_here())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from skip_what_is_refused_here())
