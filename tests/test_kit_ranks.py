"""Processes that the kit runs for ranks: failures are told, hangs show stacks, faults go with them."""

import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection

import pytest
import toy.registered  # noqa: F401

from unifiedamp.config import plugins
from unifiedamp.conformance.faults import FAULTS, laid
from unifiedamp.conformance.ranks import RankCase, RankFailure, RankProcesses, RanksFailedError, answers_of
from unifiedamp.conformance.ranks.cases import SCALE

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def raising(index, count, where):
    yield "first"
    if index == where:
        raise ZeroDivisionError("on purpose")
    yield "second"


def test_a_process_that_raises_is_named_and_started_anew():
    running = RankProcesses(2, METHOD)
    try:
        with pytest.raises(RanksFailedError, match=r"process 1 of 2: (.|\n)*ZeroDivisionError: on purpose") as caught:
            running.run(raising, 1)
        assert caught.value.answers == [["first", "second"], ["first"]]
        assert running.run(raising, None) == [["first", "second"]] * 2
    finally:
        running.close()


def waiting(index, _count, where):
    yield "ready"
    if index != where:
        time.sleep(600)
    threading.Event().wait(600)


def test_a_hang_shows_the_stacks_of_all_processes():
    running = RankProcesses(2, METHOD)
    try:
        assert running.run(raising, None) == [["first", "second"]] * 2
        running.seconds = 1.0
        with pytest.raises(RanksFailedError, match=r"processes \[0, 1\] of 2 gave no answer within 1 sec") as caught:
            running.run(waiting, 1)
        stacks = str(caught.value).split("-- stacks of process")
        assert [" in waiting\n" in each for each in stacks] == [False, True, True]
        assert [" in wait\n" in each for each in stacks] == [False, False, True]
        assert caught.value.answers == [["ready"]] * 2
    finally:
        running.close()


def dying(index, _count, cases):
    for case in cases:
        if case.name == "deadly" and index == 1:
            os._exit(7)
        yield [case.name]


def test_cases_after_one_that_died_are_run():
    running = RankProcesses(2, METHOD)
    cases = [RankCase(name, ((),), SCALE) for name in ("first", "deadly", "last")]
    try:
        answers = answers_of(running, dying, cases)
        assert answers["first"] == ["first", "first"]
        assert isinstance(answers["deadly"], RankFailure)
        assert "process 1 of 2: it died with exit code 7" in answers["deadly"].why
        assert answers["last"] == ["last", "last"]
        answers = answers_of(running, dying, [cases[1], RankCase("deadly", ((),), SCALE), cases[2]])
        assert answers["last"].why == "not run: two cases before it failed"
    finally:
        running.close()


def fails_to_join(_index, _count, _folder):
    raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("later", [0.0, 0.5])
def test_the_only_case_fails_where_processes_cannot_join(monkeypatch, later):
    """Also where they died before they were sent their work."""
    send = Connection.send
    monkeypatch.setattr(Connection, "send", lambda pipe, sent: (time.sleep(later), send(pipe, sent)))
    running = RankProcesses(2, METHOD, fails_to_join)
    try:
        answers = answers_of(running, dying, [RankCase("only", ((),), SCALE)])
        assert "ZeroDivisionError: on purpose" in answers["only"].why
    finally:
        running.close()


def test_a_process_that_has_not_begun_is_said_to_be_starting():
    running = RankProcesses(1, METHOD, joins_late, seconds=-3.0)
    try:
        with pytest.raises(RanksFailedError, match="it had not begun: it was being started"):
            running.run(raising, None)
    finally:
        running.close()


def joins_late(_index, _count, _folder):
    time.sleep(600)


def set_up(_index, _count, _folder):
    """Importing this file registers the toy."""


def what_lies_over(_index, _count):
    yield laid.laid_over(), plugins.load_plugin("toy").load().__doc__


def test_faults_lie_over_backends_in_these_processes_too(monkeypatch):
    monkeypatch.setattr(plugins, "_in_process", dict(plugins._in_process))
    monkeypatch.setattr(laid, "_laid", {})
    laid.lay_over("toy", FAULTS["no_floor"])
    running = RankProcesses(1, METHOD, set_up)
    try:
        assert running.run(what_lies_over) == [[({"toy": "no_floor"}, FAULTS["no_floor"].about)]]
    finally:
        running.close()
