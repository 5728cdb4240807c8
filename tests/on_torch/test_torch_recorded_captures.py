"""Captured steps that are recorded: a second graph, which records what an eager step would and trains the same."""

import pytest
import torch
from captured import Recorded

from unifiedamp.conformance.recorded import Kept

EVERY = 4


def run_of(monkeypatch, captured, steps=18, record=True, first=1, between=None, body=None, **options):
    """Train; return the run, its records and its weights."""
    run, kept = Recorded(monkeypatch, captured=captured, body=body, **options), Kept()
    torch.manual_seed(3)
    recorder = None
    for seed in range(1, steps + 1):
        if seed == first and record is not False:
            recorder = run.amp.record(kept, every=EVERY, **(record if isinstance(record, dict) else {}))
        if between is not None:
            between(run, seed)
        run.feed(seed, bad=seed in (8, 11))
    if recorder is not None:
        recorder.stop()
    return run, kept.of("step"), [param.detach().cpu().clone() for param in run.model.parameters()]


def without_times(records):
    return [{name: value for name, value in each.items() if name not in ("time", "ran")} for each in records]


def count_captures(run):
    return len(run.inner.graphs)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_recorded_replay_tells_what_an_eager_step_does(monkeypatch, accumulate):
    (_, eager, _), (run, captured, weights), (plain, _, alone) = (
        run_of(monkeypatch, captured, record=record, accumulate_steps=accumulate, steps=18 * accumulate)
        for captured, record in ((False, True), (True, True), (True, False))
    )
    assert [each["step"] for each in captured] == [each["step"] for each in eager]
    assert any(each["non_finite"] for each in captured)
    if run.stage is not None:
        assert without_times(captured) == without_times(eager)
    for one, other in zip(captured, eager, strict=True):
        assert [row["layer"] for row in one["activations"]] == [row["layer"] for row in other["activations"]]
        assert one["gradients"].keys() == other["gradients"].keys()
    assert all(torch.equal(one, other) for one, other in zip(weights, alone, strict=True))
    assert (count_captures(plain), count_captures(run)) == (accumulate, 2 * accumulate)


@pytest.mark.parametrize("record", [{}, {"activations": False}])
def test_a_recorder_may_start_after_the_first_captures(monkeypatch, record):
    run, records, _ = run_of(monkeypatch, captured=True, first=7, record=record)
    assert [each["step"] for each in records][:2] == [7, 8]
    assert count_captures(run) == 2
    assert all(bool(each["activations"]) is record.get("activations", True) for each in records)
    captures, again = run.stage and run.stage.captures, Kept()
    with run.amp.record(again, every=1, **record):
        run.feed(31)
        run.feed(32, bad=True)
    assert [each["applied"] for each in again.of("step")] == [True, False]
    assert [each["skipped_steps"] for each in again.of("step")] == [2, 3]
    assert run.stage is None or run.stage.captures == captures, "the graph of the first recorder serves the second"
    run.feed(33)
    assert len(again.of("step")) == 2


def test_sketches_and_weights_of_a_replay(monkeypatch):
    """Weights that the loop writes to between steps are those that the step starts from."""

    def halve(run, seed):
        if seed == 16:
            with torch.no_grad():
                run.model[0][0].weight.mul_(0.5)

    eager, captured = (run_of(monkeypatch, each, record={"compare": True}, between=halve)[1] for each in (False, True))
    assert len({len(each["compare"]["layers"]) for each in (*eager, *captured)}) == 1
    (one,), (other,) = ([each for each in records if each["step"] == 16] for records in (eager, captured))
    assert (one["ran"], other["ran"]) == ("eager", "compiled" if torch.cuda.is_available() else "eager")
    for part in ("gradients", "before", "update"):
        for name, sketch in one["compare"][part].items():
            assert other["compare"][part][name]["norm"] == pytest.approx(sketch["norm"], rel=1e-5), (part, name)
            assert other["compare"][part][name]["sketch"] == pytest.approx(sketch["sketch"], rel=1e-4, abs=1e-6)
    norms = [[row["norm"] for row in each["compare"]["layers"]] for each in (one, other)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_states_of_a_replay(monkeypatch, accumulate):
    """An update is what the step changed, and not what the loop wrote to a weight before it."""

    def halve(run, seed):
        if seed == 16:
            with torch.no_grad():
                run.model[0][0].weight.mul_(0.5)

    options = {"record": {"states": True}, "accumulate_steps": accumulate, "steps": 16 * accumulate}
    (_, eager, weights), (run, captured, _) = (
        run_of(monkeypatch, each, between=halve, **options) for each in (False, True)
    )
    assert count_captures(run) == 2 * accumulate
    for one, other in zip(eager, captured, strict=True):
        assert one["states"].keys() == other["states"].keys() == one["gradients"].keys()
        for name, states in one["states"].items():
            assert states.keys() == other["states"][name].keys() == {"weight", "update", "exp_avg", "exp_avg_sq"}
            for state, counts in states.items():
                assert other["states"][name][state]["norm"] == pytest.approx(counts["norm"], rel=1e-5), (name, state)
                if run.stage is not None:
                    assert other["states"][name][state] == counts
        assert all(one["states"][name]["update"]["norm"] == 0 for name in one["states"] if not one["applied"])
    halved = next(each for each in captured if each["step"] == 16 // accumulate)
    assert halved["states"]["0.0.weight"]["update"]["norm"] < 0.06 * weights[0].numel() ** 0.5
    assert captured[-1]["states"]["0.0.weight"]["weight"]["norm"] == pytest.approx(weights[0].double().norm().item())


def test_a_later_recorder_knows_whose_gradients_overflowed(monkeypatch):
    """Those of two optimizers; a replay does not run the Python that tells."""
    amp_of = {}

    def body(run, x, y):
        if run not in amp_of:
            other = torch.nn.Linear(8, 4).to(x.device)
            amp_of[run] = run.amp.prepare(other, torch.optim.SGD(other.parameters(), lr=0.01, fused=True))
        model, optimizer = amp_of[run]
        for each, owner, values in ((run.model, run.optimizer, x), (model, optimizer, -x)):
            run.amp.backward(lambda each=each, values=values: torch.nn.functional.cross_entropy(each(values), y), owner)
        run.amp.step(run.optimizer)
        run.amp.step(optimizer)

    run, _, _ = run_of(monkeypatch, captured=True, body=body, steps=12)
    kept = Kept()
    with run.amp.record(kept, every=1):
        run.feed(40, bad=True)
    (record,) = kept.of("step")
    assert record["skipped_steps"] == run.amp.skipped_steps == 6
    assert kept.of("skip") == []


def test_a_step_whose_capture_fails_while_it_is_recorded_is_recorded_uncaptured(monkeypatch, recwarn):
    """The graph for other steps stays in use."""

    def body(run, x, y):
        if run.inner._context.recorder.form() is not None:
            float(x.sum())
        from captured import plain

        return plain(run, x, y)

    run, records, _ = run_of(monkeypatch, captured=True, body=body)
    assert count_captures(run) == 1
    assert len(records) == 7
    assert sum("uncaptured where it is recorded" in str(each.message) for each in recwarn) == 1
