"""One of a test's cases, or of every second, third, … test's: where another run goes through all of them.

Whether a case runs is often known only when it has started: a harness may lack what it asks for, a framework refuse it.
So where the case that was chosen does not run, the next one does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

import pytest

ANY = "any"
"""What stands for each form that is not named, and for tests in no particular form."""
_OTHERS = pytest.StashKey[list[pytest.Item]]()
"""Of a case that was chosen: the test's other cases, in the order in which they take its place."""
_RAN = pytest.StashKey[bool]()


def in_forms(items: Iterable[pytest.Item], wanted: Iterable[str]) -> list[pytest.Item]:
    """Keep one case of each test of a backend in these forms, and all other cases.

    Args:
        items: the cases.
        wanted: "FORM", or "FORM=N" for one case of every Nth test; :data:`ANY` for all other forms.

    Raises:
        pytest.UsageError: N is no whole number of at least 1.
    """
    shares = dict(map(_share, wanted))
    others = shares.get(ANY, 0)
    return sampled(items, lambda item: shares.get(form_of(item), others) if "harness" in parameters_of(item) else 0)


def _share(text: str) -> tuple[str, int]:
    form, _, number = text.partition("=")
    if not (number or "1").isdecimal() or not int(number or "1"):
        raise pytest.UsageError(f"--amp-sample {text}: give FORM, or FORM=N with N of at least 1")
    return form, int(number or "1")


def by_form(item: pytest.Item) -> str:
    """Return the names of a test, its backend and its form."""
    return " ".join((item.nodeid.partition("[")[0], str(parameters_of(item).get("harness", "")), form_of(item)))


def sampled(
    items: Iterable[pytest.Item],
    share: Callable[[pytest.Item], int],
    group: Callable[[pytest.Item], str] = by_form,
) -> list[pytest.Item]:
    """Keep one case of every Nth group, where ``share`` returns N; all cases where it returns 0.

    Which group and which case follow from the group's name: over many tests, all values of a parameter and all tests'
    forms are kept. :func:`run_others` needs the cases that are left out.

    Args:
        items: the cases.
        share: N of a case, alike for all cases of a group.
        group: the name of a case's group; left out, a test in each form of each backend.
    """
    known = list(items)
    cases: dict[str, list[pytest.Item]] = {}
    for item in filter(share, known):
        cases.setdefault(group(item), []).append(item)
    kept = set()
    for name, each in cases.items():
        number, place = divmod(zlib.crc32(name.encode()), len(each))
        if number % share(each[0]) == 0:
            chosen, *others = each[place:] + each[:place]
            chosen.stash[_OTHERS] = others
            kept.add(id(chosen))
    return [item for item in known if not share(item) or id(item) in kept]


def others_of(item: pytest.Item) -> list[pytest.Item]:
    """Return the cases that one stands for, in the order in which they take its place; none of one not sampled."""
    return item.stash.get(_OTHERS, [])


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Note whether a case ran: it passed or failed, and was neither skipped nor expected to fail."""
    passed = report.when == "call" and report.passed and not hasattr(report, "wasxfail")
    if passed or report.failed:
        item.stash[_RAN] = True


def run_others(item: pytest.Item, nextitem: pytest.Item | None, fails: Callable[[pytest.Item], bool]) -> None:
    """Run the other cases of a test one by one until one runs, if the case that was chosen did not.

    Args:
        item: the chosen one.
        nextitem: what runs after it, for pytest.
        fails: whether a case is expected to fail; it would prove nothing.
    """
    others = iter([other for other in others_of(item) if not fails(other)])
    while not item.stash.get(_RAN, False) and (other := next(others, None)):
        tests = item.session.items
        tests[tests.index(item)] = other  # pytest-xdist takes reports of the session's tests alone
        other.ihook.pytest_runtest_protocol(item=other, nextitem=nextitem)
        item = other


def parameters_of(item: pytest.Item) -> dict[str, object]:
    """Return the parameters of a test's case by name; empty where it has none."""
    return dict(item.callspec.params) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def form_of(item: pytest.Item) -> str:
    """Return the form that a test runs in; "" for none in particular."""
    return str(parameters_of(item).get("form", ""))
