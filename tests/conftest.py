"""Registers the toy backend, so that suite and core tests have a backend that needs no framework."""

import gc

import effort
import pytest
import toy.registered  # noqa: F401

from unifiedamp import PolicyNotSupportedError
from unifiedamp.config import plugins
from unifiedamp.conformance.plugin import backend_of, declared, peers, refused_here

FRAMEWORKS = ("torch", "tensorflow", "mxnet")
#: Folders of tests that only one framework can run, where it is not installed.
collect_ignore = [f"on_{name}" for name in FRAMEWORKS if not plugins.is_installed(name)]


def pytest_addoption(parser):
    parser.addoption(
        "--proved-elsewhere",
        action="store_true",
        help="leave out what another environment proves: the toy backend, and features that a backend does not declare",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what is proved elsewhere, and put tests of one framework together: see :func:`framework_of`."""
    if config.getoption("--proved-elsewhere"):
        config.hook.pytest_deselected(items=[item for item in items if is_proved_elsewhere(item)])
        items[:] = [item for item in items if not is_proved_elsewhere(item)]
    if effort.QUICK:
        items[:] = [item for item in items if is_quick(item)]
    items.sort(key=lambda item: ["torch", "", "mxnet", "tensorflow"].index(framework_of(item)))


def pytest_collection_finish():
    gc.freeze()  # what was imported so far is not looked through at each collection


def is_proved_elsewhere(item):
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if "toy" in (parameters.get("harness"), parameters.get("peer")):
        return True
    backend = backend_of(item)
    wanted = [feature for marker in item.iter_markers("needs") for feature in marker.args]
    return backend is not None and not all(declared(backend).feature(feature) for feature in wanted)


def is_quick(item):
    """Tell whether a test compiles nothing: the toy does not, whatever its forms are called."""
    form = item.callspec.params.get("form", "eager") if hasattr(item, "callspec") else "eager"
    return form.startswith("eager") or backend_of(item) == "toy"


def framework_of(item):
    """Return the framework that a test runs on; "" for none or several.

    pytest-xdist's ``worksteal`` gives each of two processes one half of the tests, in order: so few tests of TensorFlow
    run in the process that has imported torch, and the other way round.
    """
    named = backend_of(item) or (item.callspec.params.get("backend") if hasattr(item, "callspec") else None)
    folder = next((name for name in FRAMEWORKS if f"/on_{name}/" in item.path.as_posix()), "")
    return named if named in FRAMEWORKS else folder


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
