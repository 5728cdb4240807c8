"""The pytest plugin of the conformance kit: which backends run, what their capabilities and expected failures say.

Options: ``--amp-backend NAME`` (or ``all``), ``--amp-form FORM``, ``--amp-sample FORM``, ``--amp-json FILE``,
``--amp-trajectories N``, ``--amp-soak N``.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterable
from typing import Any

import pytest

from unifiedamp.backend import Capabilities
from unifiedamp.config import plugins
from unifiedamp.errors import PolicyNotSupportedError

from . import emulated, expected, report, sample
from .harness import Harness, load_harness
from .optional import NotInFramework

SUITE = "unifiedamp.conformance.suite"
pytest.register_assert_rewrite(SUITE, "unifiedamp.conformance.driver")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kit's options."""
    group = parser.getgroup("unifiedamp", "unifiedamp conformance kit")
    group.addoption("--amp-backend", default="all", help="the backend under test, or 'all' that are installed")
    group.addoption("--amp-form", action="append", help="only this form of the harness; again for more")
    group.addoption(
        "--amp-sample",
        action="append",
        metavar="FORM[=N]",
        help="run one case of each test in this form, or of every Nth, and another if it is skipped; again for more; "
        "'any': all other forms",
    )
    group.addoption("--amp-peer", action="append", help="take over states of this backend alone; again for more")
    group.addoption("--amp-unmarked", action="store_true", help="leave it to another plugin to call mark()")
    group.addoption("--amp-json", default=None, help="write the conformance report here")
    group.addoption("--amp-trajectories", default=1000, type=int, help="random loss-scale trajectories per backend")
    group.addoption("--amp-soak", default=0, type=int, help="steps of the soak test per backend; 0 leaves it out")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the reporter."""
    config.addinivalue_line("markers", "needs(*features): run where the backend declares these capabilities")
    # A session that warns where nothing is wrong is not believed where something is. `-W` overrides this.
    config.addinivalue_line("filterwarnings", "error::unifiedamp.errors.AmpWarning")
    config.addinivalue_line("filterwarnings", "ignore::unifiedamp.errors.NoGainWarning")
    shares = hasattr(config, "workerinput")  # a worker of pytest-xdist, whose outcomes reach the process that writes
    path = None if shares else config.getoption("--amp-json")
    config.pluginmanager.register(report.Reporter(path), "unifiedamp-report")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist starts workers
def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse a form that no backend under test has: nothing would be tested.

    Raises:
        pytest.UsageError: there is one.
    """
    wanted = session.config.getoption("--amp-form")
    if not wanted or not (names := backends(session.config)):
        return
    known = dict.fromkeys(form for name in names for form in load_harness(name).forms)
    if missing := [form for form in wanted if form not in known]:
        raise pytest.UsageError(
            f"--amp-form {', '.join(missing)}: the forms of {', '.join(names)} are {', '.join(known)}"
        )


def backends(config: pytest.Config, module: Any = None) -> list[str]:
    """Return the names under test: the module's ``AMP_BACKEND``, the option's, or all that have a harness here."""
    named = getattr(module, "AMP_BACKEND", None) or config.getoption("--amp-backend")
    if named != "all":
        return [str(named)]
    return peers()


def peers() -> list[str]:
    """Return every installed backend that has a harness."""
    return [*_with_harness(tuple(plugins.backend_entry_points()))]


@functools.cache
def _with_harness(names: tuple[str, ...]) -> tuple[str, ...]:
    """Ask once for many tests: versions are read from the metadata of what is installed."""
    infos = map(plugins.backend_info, names)
    return tuple(info.name for info in infos if info.installed and info.plugin and info.plugin.harness)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that takes ``harness`` once per backend, per form, and per peer whose state it takes over."""
    if "peer" in metafunc.fixturenames:
        metafunc.parametrize("peer", metafunc.config.getoption("--amp-peer") or peers())
    if "harness" not in metafunc.fixturenames:
        return
    names = backends(metafunc.config, metafunc.module)
    if "form" not in metafunc.fixturenames:
        metafunc.parametrize("harness", [pytest.param(name, id=name) for name in names], indirect=True)
        return
    wanted = metafunc.config.getoption("--amp-form")
    pairs = [(name, form) for name in names for form in load_harness(name).forms if not wanted or form in wanted]
    if "ranks" in metafunc.fixturenames:
        _over_ranks(metafunc, pairs)
        return
    params = [pytest.param(name, form, id=f"{name}-{form}") for name, form in pairs]
    metafunc.parametrize(("harness", "form"), params, indirect=["harness"])


def _over_ranks(metafunc: pytest.Metafunc, pairs: Iterable[tuple[str, str]]) -> None:
    """Run a test once per kind and number of ranks that train together, where a harness has some."""
    params, full = [], metafunc.config.getoption("--amp-trajectories") >= 10_000
    for name, form in pairs:
        kinds = load_harness(name).rank_kinds
        groups = [(kind, count) for kind, rules in kinds.items() for count in rules.runs(form, full)]
        params += [pytest.param(name, form, each, id=f"{name}-{form}-{each[0]}-{each[1]}") for each in groups]
        if not kinds:
            lacks = pytest.mark.skip(reason=f"the harness of {name!r} has no rank_kinds")
            params.append(pytest.param(name, form, None, id=f"{name}-{form}", marks=lacks))
    metafunc.parametrize(("harness", "form", "ranks"), params, indirect=["harness"])


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Harness:
    """The harness of the backend under test."""
    return load_harness(request.param)


def backend_of(item: pytest.Item) -> str | None:
    """Return the backend that a test runs on; None where it runs on none in particular."""
    call = getattr(item, "callspec", None)
    name = call.params.get("harness") if call else None
    return name if isinstance(name, str) else None  # pytest leaves a mark where no backend has the form


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of the forms that are sampled, and mark the others, unless another plugin does it later."""
    kept = sample.in_forms(items, config.getoption("--amp-sample") or ())
    chosen = set(map(id, kept))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
    items[:] = kept
    if not config.getoption("--amp-unmarked"):
        mark([case for item in items for case in (item, *sample.others_of(item))])


def mark(items: list[pytest.Item]) -> None:
    """Mark what a backend does not declare, and what it is known to fail; needs a session of the backend."""
    for item in items:
        backend = backend_of(item)
        if backend is None:
            continue
        item.user_properties.append(("amp-backend", backend))
        for marker in item.iter_markers("needs"):
            for feature in marker.args:
                _mark_undeclared(item, backend, feature)
    expected.apply(items, backend_of)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Run another case of a test that is sampled where the chosen one is skipped or fails as expected."""
    done = yield
    sample.run_others(item, nextitem, _is_expected_to_fail)
    return done


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a case ran."""
    report = yield
    sample.note(item, report)
    return report


def _is_expected_to_fail(item: pytest.Item) -> bool:
    return any(key in {"amp-undeclared", "amp-expected"} for key, _ in item.user_properties)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Skip a test that asked for a policy which the backend declares not to run on this machine, or for native
    objects that the framework lacks; note the policies that ran emulated.
    """
    emulated.take_ran()
    try:
        return (yield)
    except NotInFramework as lack:
        pytest.skip(str(lack))
    except PolicyNotSupportedError as error:
        reason = refused_here(error, [backend_of(item) or ""]) or _needs_native(error)
        if reason:
            pytest.skip(reason)
        raise
    finally:
        item.user_properties += [("amp-emulated", policy) for policy in dict.fromkeys(emulated.take_ran())]


def _needs_native(error: PolicyNotSupportedError) -> str:
    """Return why a test that ran emulated cannot: it asks for what emulation has not; empty for another."""
    ran = emulated.take_ran()
    if not ran or "emulate" not in str(error):
        return ""
    return f"declared: {ran[-1]} does not run on this machine, and not emulated: {error}"


def refused_here(error: PolicyNotSupportedError, backends: Iterable[str]) -> str:
    """Return the declared reason that a policy was refused for; empty where it is declared to run."""
    for name in filter(None, backends):
        for policy, support in load_harness(name).capabilities().policies.items():
            if not support and support.reason in str(error):
                return f"declared: {policy} does not run on this machine: {support.reason}"
    return ""


@functools.cache
def declared(backend: str) -> Capabilities:
    """Return what a backend declares; it does not change while tests are collected, and takes a session to learn."""
    return load_harness(backend).capabilities()


def _mark_undeclared(item: pytest.Item, backend: str, feature: str) -> None:
    support = declared(backend).feature(feature)
    if not support:
        item.user_properties.append(("amp-undeclared", feature))
        # Run all the same: what works though it is not declared is reported.
        item.add_marker(pytest.mark.xfail(reason=f"{backend} declares no {feature}: {support.reason}", strict=False))
