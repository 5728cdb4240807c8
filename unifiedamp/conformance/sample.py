"""One of a test's cases: for forms and environments whose other cases another run goes through."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable

import pytest


def in_forms(items: Iterable[pytest.Item], forms: Collection[str]) -> list[pytest.Item]:
    """Keep one case of each test in each of these forms, and all cases in others."""
    return sampled(items, lambda item: form_of(item) in forms)


def sampled(items: Iterable[pytest.Item], is_sampled: Callable[[pytest.Item], bool]) -> list[pytest.Item]:
    """Keep one such case of each test in each form of each backend, and all others.

    Which one follows from the names of test and form: over many tests, all values of a parameter are kept.
    """
    known = list(items)
    cases: dict[str, list[pytest.Item]] = {}
    for item in filter(is_sampled, known):
        cases.setdefault(_test_and_form(item), []).append(item)
    kept = {id(each[zlib.crc32(name.encode()) % len(each)]) for name, each in cases.items()}
    return [item for item in known if not is_sampled(item) or id(item) in kept]


def parameters_of(item: pytest.Item) -> dict[str, object]:
    """Return the parameters of a test's case by name; empty where it has none."""
    return dict(item.callspec.params) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def form_of(item: pytest.Item) -> str:
    """Return the form that a test runs in; "" for none in particular."""
    return str(parameters_of(item).get("form", ""))


def _test_and_form(item: pytest.Item) -> str:
    return " ".join((item.nodeid.partition("[")[0], str(parameters_of(item).get("harness", "")), form_of(item)))
