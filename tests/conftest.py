"""Registers the toy backend, so that suite and core tests have a backend that needs no framework."""

import pytest
import toy.registered  # noqa: F401

from unifiedamp import PolicyNotSupportedError
from unifiedamp.config import plugins
from unifiedamp.conformance.plugin import peers, refused_here

#: Folders of tests that only one framework can run, where it is not installed.
collect_ignore = [f"on_{name}" for name in ("torch", "tensorflow", "mxnet") if not plugins.is_installed(name)]


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
