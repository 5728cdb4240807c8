"""Mode "max" over replicas: XLA runs each replica's part of a step up to where they meet, with the same results."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

NOT_BY_XLA = "amp.compile: XLA cannot compile the replicas' programs of"


def pairs(results, case):
    """Return a case without XLA and with it."""
    return results[case]["compiled"], results[case]["max"]


def same(one, two, tolerance):
    """Compare nested lists of numbers."""
    if isinstance(one, list):
        assert len(one) == len(two)
        for first, second in zip(one, two, strict=True):
            same(first, second, tolerance)
    elif isinstance(one, float):
        np.testing.assert_allclose(two, one, rtol=tolerance, atol=tolerance)
    else:
        assert one == two


@pytest.mark.parametrize(("network", "tolerance"), [("convnet", 1e-5), ("float16", 4e-3), ("recurrent", 1e-5)])
def test_networks_train_as_without_xla(replica_results, network, tolerance):
    """Batch norms (each replica's and synchronized ones), clipping, a loop, a table."""
    without, by_xla = (part[network] for part in pairs(replica_results, "networks"))
    same(without, by_xla, tolerance)
    losses, weights, applied, scale = by_xla
    assert (len(losses), applied, scale) == (2, 2, 4.0)
    assert not any(np.isnan(copy).any() for copies in weights for copy in copies)


@pytest.mark.parametrize(
    ("update", "tolerance"), [("scheduled", 1e-5), ("clipped", 1e-5), ("on_host", 1e-5), ("kahan", 8e-3)]
)
def test_updates_are_those_without_xla(replica_results, update, tolerance):
    without, by_xla = (part[update] for part in pairs(replica_results, "updates"))
    same(without, by_xla, tolerance)
    losses, weights, applied, _ = by_xla
    assert (len(losses), applied) == (3, 3)
    for first, second in weights:
        assert first == second


@pytest.mark.parametrize("optimizer", ["momentum", "scheduled", "constrained", "nadam", "replaced"])
def test_a_skipped_update_keeps_what_the_optimizer_has(replica_results, optimizer):
    """Also where XLA's programs run the update in each step, without a branch that waits for the decision."""
    without, by_xla = (part[optimizer] for part in pairs(replica_results, "skipped"))
    same(without, by_xla, 1e-5)
    weights, kept, steps, scale = by_xla
    assert (kept, steps, scale) == ([False, True, False, True], [2, 2, 2], 1.0)
    for first, second in weights:
        assert first == second


def test_xla_runs_all_but_the_sum_and_what_spans_replicas(replica_results):
    (_, _, without), (inside, outside, ran) = pairs(replica_results, "layout")
    assert "XlaLaunch" not in without
    for forward_or_backward in ("Conv2D", "Conv2DBackpropFilter", "MatMul", "BiasAddGrad", "ReluGrad", "Rsqrt"):
        assert inside[forward_or_backward] > 0
        assert forward_or_backward not in outside
        assert forward_or_backward not in ran
    for of_sums in ("IsFinite", "Reciprocal"):
        assert inside[of_sums] > 0
        assert of_sums not in outside
    assert inside["ConcatV2"] > 0
    assert "ConcatV2" not in outside, "gradients are joined for their sum inside a program"
    assert outside["CollectiveReduceV2"] > 0
    assert not {"CollectiveReduceV2", "If"} & inside.keys()
    if hasattr(tf.keras.optimizers.SGD, "scale_loss"):  # Keras 3, where all updates go through one method
        assert not {"If", "StatelessIf"} & ran.keys(), "nothing waits for the decision"
        assert ran["AssignAddVariableOp"] == 2, "updates begun and ended; all other counters are the programs'"
    else:
        assert outside["If"] > 0
    # Two synchronized reductions in each pass part a replica's program; the gradients leave the last part.
    assert ran["XlaLaunch"] >= 2
    assert ran["CollectiveReduceV2"] == without["CollectiveReduceV2"]


def test_outputs_metrics_and_what_xla_cannot_run(replica_results):
    without, by_xla = pairs(replica_results, "odd")
    same(without, by_xla, 1e-5)
    rows = by_xla[0]
    assert [row[2] for row in rows] == [[6, 6], [2, 2]]
    assert [len(np.array(logits)) for logits in rows[-1][-1]] == [2, 2]


def test_two_losses_of_one_region(replica_results):
    (dense, loops), (dense_by_xla, loops_by_xla) = pairs(replica_results, "two_losses")
    same(dense, dense_by_xla, 1e-5)
    assert dense_by_xla[-1] == []
    (told,) = loops_by_xla[-1]
    assert told.startswith(NOT_BY_XLA)
    assert "the gradients of a loop are computed after a step" in told
    same(loops[:-1], loops_by_xla[:-1], 1e-5)


def test_a_step_that_xla_cannot_compile_by_replica_runs_as_without(replica_results):
    (silent, *without), (told, *by_xla) = pairs(replica_results, "not_by_xla")
    assert silent == [[], []]
    same(without, by_xla, 1e-5)
    for (message,), reason in zip(told, ("strategy.run inside a loop", "calls a tf.function that has"), strict=True):
        assert message.startswith(NOT_BY_XLA)
        assert reason in message


def test_dropout_differs_by_step_as_without_xla(replica_results):
    """Keras 3's replicas have seeds that are alike, and so drop the same elements; Keras 2's do not."""
    without, by_xla = (np.array(masks).reshape(2, 2, -1) for masks in pairs(replica_results, "dropout"))
    for first, second in (without, by_xla):
        assert set(first.ravel()) == set(second.ravel()) == {0.0, 2.0}
        assert (first != second).any(axis=1).all()
    assert (without[:, 0] == without[:, 1]).all() == (by_xla[:, 0] == by_xla[:, 1]).all()
