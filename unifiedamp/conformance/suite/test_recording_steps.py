"""Which steps the recorder looks at, and what it takes for a step."""

import math

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled, probe_run, session
from unifiedamp.conformance.recorded import Kept
from unifiedamp.conformance.suite.test_interrupted import Interrupted, Interrupter, fail

pytestmark = pytest.mark.needs("recording")


def test_the_first_step_and_every_nth_are_recorded(harness, form):
    run = probe_run(harness, form, loss_scale=8.0)
    kept = Kept()
    with run.amp.record(kept, every=4) as recorder:
        for _ in range(10):
            run.feed(1.0)
    assert [(r["step"], r["reason"], r["applied_steps"]) for r in kept.of("step")] == [
        (1, "first", 1), (4, "every", 4), (8, "every", 8),
    ]  # fmt: skip
    assert (recorder.step, recorder.recorded, kept.closed) == (10, 3, True)
    run.feed(1.0)
    assert len(kept.of("step")) == 3


def test_steps_are_numbered_on_after_a_checkpoint(harness, form):
    run = probe_run(harness, form, loss_scale=8.0)
    state = run.amp.state_dict()
    state["state"]["applied_steps"] = 41
    run.amp.load_state_dict(state)
    kept = Kept()
    with run.amp.record(kept, every=43):
        run.feed(1.0)
        run.feed(1.0)
    assert kept.of("header")[0]["first_step"] == 42
    assert [record["step"] for record in kept.of("step")] == [42, 43]


def test_a_step_after_a_skipped_one_is_recorded(harness, form):
    run = probe_run(harness, form, loss_scale="dynamic")
    kept = Kept()
    with run.amp.record(kept, every=6):
        for step in range(1, 15):
            run.feed(math.inf if step == 9 else 1.0)
    after = [record["step"] for record in kept.of("step") if record["reason"] == "after a skip"]
    assert after == ([10] if kept.of("skip")[0]["exact"] else [13])
    assert [record["step"] for record in kept.of("step") if record["reason"] != "after a skip"] == [1, 6, 12]


def test_the_scale_told_is_that_of_the_gradients(harness, form):
    """Also of steps that change it: by growth, and by a skip."""
    run = probe_run(harness, form, loss_scale=ua.DynamicLossScale(initial_scale=4.0, growth_interval=2))
    kept = Kept()
    with run.amp.record(kept, every=1):
        for value in (1.0, 1.0, 1.0, math.inf, 1.0, 1.0):
            run.feed(value)
    records = kept.of("step")
    assert [each["scale"] for each in records] == run.scales == [4.0, 4.0, 8.0, 8.0, 4.0, 4.0]
    told = [list(each["gradients"]["w0"]["scaled"]["exponents"]) for each in records]
    assert told == [[] if index == 3 else [str(int(math.log2(scale)))] for index, scale in enumerate(run.scales)]


@pytest.mark.needs("accumulation")
def test_a_window_of_micro_batches_is_one_step(harness, form):
    run = probe_run(harness, form, loss_scale=4.0, accumulate_steps=2)
    kept = Kept()
    with run.amp.record(kept, every=2):
        for value in (1.0, 3.0, 2.0, 6.0, 1.0, 1.0):
            run.feed(value)
    # The mean of 1 and 3 is 2, that of 2 and 6 is 4.
    told = [list(record["gradients"]["w0"]["true"]["exponents"]) for record in kept.of("step")]
    assert [record["step"] for record in kept.of("step")] == [1, 2]
    assert told == [["1"], ["2"]]


@pytest.mark.needs("accumulation")
def test_a_window_whose_last_micro_batch_reaches_less(harness, form):
    """Gradients that only the first one made are counted too."""
    amp = session(harness, form, loss_scale=4.0, accumulate_steps=2)
    models = [harness.probe([1.0]), harness.probe([1.0])]
    *models, optimizer = amp.prepare(*models, harness.sgd(models, 0.1))

    def micro_batch(loss):
        def step(x):
            amp.backward(lambda: loss(x), optimizer)
            amp.step(optimizer)

        return compiled(amp, form, step)

    steps = [micro_batch(lambda x: models[0](x) + models[1](x)), micro_batch(models[0])]
    for _ in range(2):
        kept = Kept()
        with amp.record(kept):
            for step in steps:
                step(amp.to_native(np.float32([4.0])))
        (record,) = kept.of("step")
        told = sorted(list(gradient["true"]["exponents"]) for gradient in record["gradients"].values())
        assert told == [["1"], ["2"]]


def test_clipped_steps_are_counted_before_clipping(harness, form):
    run = probe_run(harness, form, loss_scale=4.0, clip=lambda amp, optimizer: amp.clip_grad_norm(optimizer, 0.001))
    kept = Kept()
    with run.amp.record(kept):
        run.feed(8.0)
    (record,) = kept.of("step")
    assert list(record["gradients"]["w0"]["true"]["exponents"]) == ["3"]
    assert list(record["gradients"]["w0"]["scaled"]["exponents"]) == ["5"]


def test_without_a_loss_scale(harness, form):
    run = probe_run(harness, form, loss_scale="none")
    kept = Kept()
    with run.amp.record(kept, every=2):
        run.feed(1.0)
        run.feed(2.0**-30)
    first, second = kept.of("step")
    assert first["scale"] == second["scale"] == 1.0
    assert second["gradients"]["w0"]["scaled"]["flushed"] == 1
    assert first["applied"] is True


@pytest.mark.needs("several_optimizers")
def test_two_optimizers_are_one_step(harness, form):
    amp = session(harness, form, "float32", loss_scale=ua.DynamicLossScale(initial_scale=8.0))
    with amp.scope():
        models = [harness.probe([1.0]), harness.probe([1.0])]
        optimizers = [harness.sgd([model], 0.1) for model in models]
    *models, one, two = amp.prepare(*models, *optimizers)

    def step(x, y):
        for model, optimizer, value in zip(models, (one, two), (x, y), strict=True):
            amp.backward(lambda model=model, value=value: model(value), optimizer)
        amp.step(one)
        amp.step(two)

    step = compiled(amp, form, step)
    kept = Kept()
    with amp.record(kept, every=2):
        for first, second in ((1.0, 1.0), (1.0, 1e38), (1.0, 1.0), (1e38, 1e38)):
            step(amp.to_native(np.float32([first])), amp.to_native(np.float32([second])))
    records = kept.of("step")
    assert [record["step"] for record in records][:2] == [1, 2]
    assert [len(record["gradients"]) for record in records][:2] == [2, 2]
    assert len(records[1]["non_finite"]["gradients"]) == 1
    assert (records[1]["applied_steps"], records[1]["skipped_steps"]) == (3, 1)
    assert kept.of("skip") == []


def test_the_loss_told_is_the_last_one(harness, form):
    """Of two losses of a step, unscaled."""
    amp = session(harness, form, loss_scale=8.0)
    model = harness.probe([1.0])
    model, optimizer = amp.prepare(model, harness.sgd([model], 0.125))

    def step(x, y):
        amp.backward(lambda: model(x), optimizer)
        amp.backward(lambda: model(y), optimizer)
        amp.step(optimizer)

    step, kept = compiled(amp, form, step), Kept()
    with amp.record(kept, every=1):
        for _ in range(2):
            step(amp.to_native(np.float32([1.0])), amp.to_native(np.float32([3.0])))
    assert [record["loss"] for record in kept.of("step")] == [3.0, 1.5]


@pytest.mark.parametrize("way", ["discarded", "interrupted", "loaded"])
def test_a_discarded_step_is_no_part_of_the_next_one(harness, way):
    """Not its gradients, also those that the next loss does not reach, and not its loss."""
    amp = session(harness, loss_scale=8.0)
    with amp.scope():
        models = [harness.probe([1.0]), harness.probe([1.0])]
        optimizer = harness.sgd(models, 0.125)
    *models, optimizer = amp.prepare(*models, optimizer)
    one, four = (amp.to_native(np.float32([value])) for value in (1.0, 4.0))
    kept = Kept()
    with amp.record(kept, every=1):
        amp.backward(lambda: models[0](four) + models[1](four), optimizer)
        amp.clip_grad_norm(optimizer, 1e6)
        if way == "discarded":
            amp.discard_step(optimizer)
        elif way == "loaded":
            amp.load_state_dict(amp.state_dict())
        else:
            Interrupter(amp, "step", 1, False, fail)
            with pytest.raises(Interrupted):
                amp.step(optimizer)
        amp.backward(lambda: models[0](one), optimizer)
        amp.step(optimizer)
    (record,) = kept.of("step")
    assert (record["loss"], record["applied"], record["applied_steps"]) == (1.0, True, 1)
    assert len(record["gradients"]) == 1


@pytest.mark.needs("several_optimizers")
def test_an_optimizer_that_steps_more_often_has_more_iterations(harness):
    """Each of its losses after a step begins one, in which the other optimizer has no part."""
    amp = session(harness, loss_scale=8.0)
    with amp.scope():
        models = [harness.probe([1.0]), harness.probe([1.0])]
        optimizers = [harness.sgd([model], 0.125) for model in models]
    *models, one, two = amp.prepare(*models, *optimizers)

    x, kept = amp.to_native(np.float32([1.0])), Kept()
    with amp.record(kept, every=2) as recorder:
        for index in (0, 0, 0, 1) * 2:
            optimizer = (one, two)[index]
            amp.backward(lambda index=index: models[index](x), optimizer)
            amp.step(optimizer)
    assert (recorder.step, [record["step"] for record in kept.of("step")]) == (6, [1, 2, 4, 6])


def test_a_dropped_step_is_told_alone(harness):
    """Of the steps before and after it, it is told that they were applied."""
    run = probe_run(harness, loss_scale=8.0)
    x, kept = run.amp.to_native(np.float32([1.0])), Kept()
    with run.amp.record(kept, every=1):
        for dropped in (False, True, False):
            run.amp.backward(lambda: run.model(x), run.optimizer)
            run.amp.skip_if(dropped)
            run.amp.step(run.optimizer)
    assert [record["applied"] for record in kept.of("step")] == [True, False, True]


@pytest.mark.needs("several_optimizers")
def test_iterations_of_two_optimizers_are_numbered_on_from_a_loaded_state(harness):
    """Which counts the steps of both."""
    amp = session(harness, loss_scale=8.0)
    models = [harness.probe([1.0]), harness.probe([1.0])]
    *models, one, two = amp.prepare(*models, *[harness.sgd([model], 0.125) for model in models])
    state, x, kept = amp.state_dict(), amp.to_native(np.float32([1.0])), Kept()
    state["state"]["applied_steps"] = 40
    with amp.record(kept, every=1):
        amp.load_state_dict(state)
        for model, optimizer in zip(models, (one, two), strict=True):
            amp.backward(lambda model=model: model(x), optimizer)
            amp.step(optimizer)
    assert [record["step"] for record in kept.of("step")] == [21]
