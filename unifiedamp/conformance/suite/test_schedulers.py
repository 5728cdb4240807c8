"""Schedulers that a step cannot move are refused before it."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import session


def ones(amp):
    return amp.to_native(np.ones(2, np.float32))


class Plateau:
    """A scheduler like torch's ``ReduceLROnPlateau``."""

    def step(self, metrics, epoch=None):
        raise AssertionError("it must not be called")


@pytest.mark.parametrize(
    ("scheduler", "says"), [(Plateau(), "Plateau.step needs metrics"), (0.1, "float has no step()"), ([], "list has")]
)
def test_a_scheduler_that_cannot_be_stepped_is_refused_before_the_step(harness, scheduler, says):
    amp = session(harness, loss_scale=4.0)
    model = harness.probe([1.0, 1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.1))
    amp.backward(lambda: model(ones(amp)), optimizer)
    for _ in range(2):  # however often it is given
        with pytest.raises(ua.WrongObjectError) as caught:
            amp.step(optimizer, scheduler)
        assert says in str(caught.value)
    assert [float(value[0]) for value in harness.parameters(model).values()] == [1.0, 1.0]
    assert amp.step(optimizer).applied


class Owned:
    """A scheduler like those of torch, which hold their optimizer."""

    def __init__(self, optimizer):
        self.optimizer, self.moves = optimizer, 0

    def step(self):
        self.moves += 1


def test_a_scheduler_of_another_optimizer_is_refused_before_the_step(harness):
    """It would change the learning rate of the other one, whose steps may be skipped or not."""
    amp = session(harness, loss_scale=4.0)
    models = [harness.probe([1.0, 1.0]) for _ in range(2)]
    *models, one, other = amp.prepare(*models, harness.sgd(models[:1], 0.1), harness.sgd(models[1:], 0.1))
    scheduler = Owned(one)
    for model, optimizer in zip(models, (one, other), strict=True):
        amp.backward(lambda model=model: model(ones(amp)), optimizer)
    assert amp.step(one, scheduler).applied
    with pytest.raises(ua.WrongObjectError, match="this Owned belongs to another optimizer of this session"):
        amp.step(other, scheduler)
    assert scheduler.moves == 1
    assert [float(value[0]) for value in harness.parameters(models[1]).values()] == [1.0, 1.0]
    assert amp.step(other, Owned(other)).applied
