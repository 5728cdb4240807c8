"""The chapter on ranks notices each fault of ranks that train together, by the topic that names it."""

from dataclasses import replace

import pytest
from rank_mutants import MUTANTS, mutated

from unifiedamp.conformance.ranks import answers_of
from unifiedamp.conformance.ranks.cases import cases_of, resumed
from unifiedamp.conformance.suite.test_ranks import follows_the_oracle
from unifiedamp_torch.conformance.rank_models import KINDS
from unifiedamp_torch.conformance.ranks import join, joined_processes, processes, train


def judged(name, running, cases, kind, count, scale=None, good=0):
    for case in cases:
        (traces,) = answers_of(running, mutated, [case], kind, "eager", {}, name).values()
        follows_the_oracle(traces, case, KINDS[kind], count, scale or case.scale.initial_scale, good)


def going_on(kind, count):
    """A case that goes on from the state of one rank, and what that state was."""
    first, second = resumed(KINDS[kind], 1, count)
    (traces,) = answers_of(processes(1), train, [first], kind, "eager", {}).values()
    state = traces[0].state
    return [replace(second, state=state)], state["state"]["scale"], state["state"]["good_steps"]


@pytest.mark.parametrize("name", [name for name, each in MUTANTS.items() if not each.hangs])
def test_the_chapter_kills(name):
    _, kind, topic, count, _, refused = MUTANTS[name]
    if topic == "resume":
        cases, scale, good = going_on(kind, count)
        assert scale != cases[0].scale.initial_scale
        assert good
    else:
        cases, scale, good = cases_of(KINDS[kind], count, 12)[topic], None, 0
    # Not a process that dies of its fault, but for one that the backend itself refuses.
    with pytest.raises(pytest.fail.Exception if refused else AssertionError, match=refused or None):
        judged(name, processes(count), cases, kind, count, scale, good)


@pytest.mark.parametrize("name", [name for name, each in MUTANTS.items() if each.hangs])
def test_the_chapter_kills_what_makes_a_rank_wait_forever(name):
    _, kind, topic, count, *_ = MUTANTS[name]
    running = joined_processes(count, join)
    cases = cases_of(KINDS[kind], count, 12)[topic][:1]
    try:
        (traces,) = answers_of(running, train, cases, kind, "eager", {}).values()
        follows_the_oracle(traces, cases[0], KINDS[kind], count, cases[0].scale.initial_scale)
        running.seconds = 3.0  # that they work has been seen
        with pytest.raises(pytest.fail.Exception, match=r"gave no answer within 3 seconds(.|\n)* in play\n"):
            judged(name, running, cases, kind, count)
    finally:
        running.close()
