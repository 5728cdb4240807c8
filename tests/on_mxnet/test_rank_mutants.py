"""The chapter on ranks notices what goes wrong between contexts."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest

from unifiedamp.conformance.ranks import play
from unifiedamp.conformance.ranks.cases import cases_of
from unifiedamp.conformance.suite.test_ranks import follows_the_oracle
from unifiedamp_mxnet.conformance.ranks import KINDS, Contexts
from unifiedamp_mxnet.distributed import reduction
from unifiedamp_mxnet.training import prepared_optimizer

KIND = KINDS["contexts"]


def not_summed():
    """Each context applies its own gradients."""
    return patch.object(reduction, "allreduce", lambda _trainer: None)


@contextmanager
def last_context_alone_checked():
    """And before the sum."""
    own, sum_up, check = [], reduction.allreduce, prepared_optimizer.all_finite

    def summed(trainer):
        own[:] = [param.list_grad()[-1].copy() for param in trainer._params]
        sum_up(trainer)

    with (
        patch.object(reduction, "allreduce", summed),
        patch.object(prepared_optimizer, "all_finite", lambda _: check(own)),
    ):
        yield


@pytest.mark.parametrize("topic", ["overflow", "nan"])
@pytest.mark.parametrize("fault", [not_summed, last_context_alone_checked])
def test_the_chapter_kills(fault, topic):
    cases = cases_of(KIND, 2, 12)[topic]

    def judged():
        for case in cases:
            follows_the_oracle(play(Contexts(2, {}), case, "eager"), case, KIND, 2, case.scale.initial_scale)

    judged()
    with fault(), pytest.raises(AssertionError):
        judged()
