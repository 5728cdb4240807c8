"""An update that fails in the middle, where optimizers do not train the model's parameters themselves."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import probe_run
from unifiedamp.conformance.suite.test_interrupted import Interrupted

LR = 2.0**-13
"""A step from 1 that both 16-bit formats round away."""
KINDS = [
    pytest.param("float16", True, None, marks=pytest.mark.needs("master_weights"), id="float16 masters"),
    pytest.param("bfloat16", True, None, marks=pytest.mark.needs("master_weights"), id="bfloat16 masters"),
    pytest.param("bfloat16", False, "kahan", marks=pytest.mark.needs("weight_updates"), id="kahan"),
    pytest.param("bfloat16", False, "stochastic", marks=pytest.mark.needs("weight_updates"), id="stochastic"),
]


def interrupted_run(harness, dtype, masters, update, lr, momentum):
    """Two parameters after two steps, of which an update that changed the first alone was the second."""
    policy = ua.Policy.parse(str(harness.pure_policies[dtype])).replace(update=update)
    run = probe_run(
        harness, values=(1.0, 1.0), policy=policy, master_weights=masters, loss_scale=4.0,
        make=lambda model: harness.sgd([model], lr, momentum),
    )  # fmt: skip
    run.feed(1.0, 1.0)
    context = harness.interrupted_update(run.optimizer, Interrupted())
    if context is None:
        pytest.skip("updates make new values, so none is ever applied in part")
    with context, pytest.raises(Interrupted):
        run.feed(1.0, 1.0)
    run.amp.discard_step(run.optimizer)
    return run


def true_weights(run):
    return np.ravel([*run.amp.master_weights(run.model).values()]).tolist()


@pytest.mark.parametrize(("dtype", "masters", "update"), KINDS)
def test_parameters_are_what_is_trained(harness, dtype, masters, update):
    """Each is its true weight, rounded, also where the update changed that."""
    run = interrupted_run(harness, dtype, masters, update, 0.25, 0.0)
    assert run.weights() == pytest.approx(true_weights(run), rel=2.0**-8)
    first, second = run.weights()
    run.feed(1.0, 1.0)
    assert run.weights() == pytest.approx([first - 0.25, second - 0.25], rel=2.0**-7)


@pytest.mark.parametrize(("dtype", "masters", "update"), KINDS)
def test_moments_are_kept(harness, dtype, masters, update):
    """A gradient of zero moves the parameters on by the moment of the steps before."""
    run = interrupted_run(harness, dtype, masters, update, 0.25, 0.5)
    (_, before) = true_weights(run)
    run.feed(0.0, 0.0)
    (_, after) = true_weights(run)
    assert before - after == pytest.approx(0.25 * 0.5, rel=0.02)


@pytest.mark.needs("weight_updates")
def test_an_interrupted_update_takes_no_random_numbers(harness):
    """Once the weights are set back, the steps after it are rounded as if it had never begun."""
    values, lr = (1.0,) * 12, 2.0**-9  # half the distance to the neighbour: each random number decides
    policy = ua.Policy.parse(str(harness.pure_policies["bfloat16"])).replace(update="stochastic")
    straight, interrupted = (
        probe_run(harness, values=values, policy=policy, lr=lr, loss_scale="none") for _ in range(2)
    )
    for run in (straight, interrupted):
        run.feed(*values)
    context = harness.interrupted_update(interrupted.optimizer, Interrupted())
    if context is None:
        pytest.skip("updates make new values, so none is ever applied in part")
    before = interrupted.amp.master_weights(interrupted.model)
    with context, pytest.raises(Interrupted):
        interrupted.feed(*values)
    interrupted.amp.discard_step(interrupted.optimizer)
    interrupted.amp.load_master_weights(interrupted.model, before)
    assert interrupted.amp.state_dict()["update"]["steps"] == [1]
    for _ in range(2):
        for run in (straight, interrupted):
            run.feed(*values)
        assert interrupted.weights() == straight.weights()
    assert len(set(straight.weights())) > 1
