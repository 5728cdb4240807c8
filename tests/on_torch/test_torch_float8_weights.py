"""Float8 weights on torch are cast once per accumulation window, never used when they are old, and follow captures."""

import copy

import pytest
import torch
from captured import assert_same, both
from loops import session
from torch.utils.checkpoint import checkpoint

from unifiedamp_torch.precision import float8_weights

SIZE = 32
RECIPES = ["tensorwise", "delayed", "rowwise"]


@pytest.fixture
def casts(monkeypatch):
    """Counts the casts of weights that are kept."""
    made, native = [], float8_weights.cast

    def counted(tensor, *args, **kwargs):
        made.append(tensor)
        return native(tensor, *args, **kwargs)

    monkeypatch.setattr(float8_weights, "cast", counted)
    return made


def sgd(params):
    return torch.optim.SGD(params, lr=0.05, fused=True)  # whose updates change no version


class Run:
    def __init__(self, recipe, windows=3, **options):
        self.amp = session(f"mixed_float8;recipe={recipe};emulate=true", accumulate_steps=windows, **options)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.ReLU(), torch.nn.Linear(SIZE, SIZE))
        self.model, self.optimizer = self.amp.prepare(model, sgd(model.parameters()))

    def micro_batch(self, seed, call=None, step=True):
        x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
        with self.amp.autocast():
            out = (call or self.model)(x)
            loss = out.square().mean()
        with self.amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        if step:
            self.amp.step(self.optimizer)
        return out.detach()

    def evaluate(self):
        with self.amp.inference(self.model):
            return self.model(torch.ones(SIZE, SIZE))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("recomputed", [False, True])
def test_weights_are_cast_once_a_window(casts, recipe, recomputed):
    run = Run(recipe)
    for index in range(6):
        call = (lambda x: checkpoint(run.model, x, use_reentrant=False)) if recomputed else None
        run.micro_batch(index, call)
        assert len(casts) == 2 * (index // 3 + 1)


@pytest.mark.parametrize("recipe", RECIPES)
def test_they_train_as_weights_cast_each_time_do(monkeypatch, recipe):
    run, plain = Run(recipe), Run(recipe)
    for index in range(9):
        with monkeypatch.context() as each_time:
            each_time.setattr(float8_weights.CachedWeight, "get", lambda *_: float8_weights.NOTHING)
            wanted = plain.micro_batch(index)
        assert torch.equal(run.micro_batch(index), wanted)
        assert torch.equal(run.evaluate(), plain.evaluate())


def test_without_windows_nothing_is_kept(casts):
    run = Run("tensorwise", windows=1)
    run.micro_batch(0)
    assert not casts
    assert run.amp.backend._steps.float8.weights is None


def changed_in_place(run):
    with torch.no_grad():
        run.model[0].weight.mul_(2)


def loaded(run):
    run.model.load_state_dict({name: 2 * value for name, value in run.model.state_dict().items()})


def replaced(run):
    run.model[0].weight = torch.nn.Parameter(2 * run.model[0].weight.detach())


def discarded(run):
    run.amp.discard_step(run.optimizer)
    with torch.no_grad():
        run.model[0].weight.data.mul_(2)  # which _version does not tell of


@pytest.mark.parametrize("change", [changed_in_place, loaded, replaced, discarded])
def test_a_changed_weight_is_cast_anew(change):
    run = Run("tensorwise")
    before = run.micro_batch(0)
    change(run)
    other = Run("tensorwise")
    change(other)
    after = run.micro_batch(0)
    assert torch.equal(after, other.micro_batch(0))
    assert not torch.equal(after, before)


def test_evaluation_casts_anew():
    run = Run("tensorwise")
    run.micro_batch(0)
    before = run.evaluate()
    run.model[0].weight.data.mul_(2)  # which _version does not tell of
    assert not torch.equal(run.evaluate(), before)


def test_averaged_weights_are_seen():
    run = Run("tensorwise")
    average = run.amp.ema(run.model, decay=0.5)
    for index in range(6):
        run.micro_batch(index)
    trained = run.evaluate()
    with average.swapped():
        averaged = run.evaluate()
    assert not torch.equal(averaged, trained)
    assert torch.equal(run.evaluate(), trained)


def test_a_copied_model_casts_for_itself(casts):
    run = Run("tensorwise")
    run.micro_batch(0)
    other, made = copy.deepcopy(run.model), len(casts)
    with run.amp.autocast():
        before = other(torch.ones(SIZE, SIZE))
        with torch.no_grad():
            other[0].weight.data.zero_()
        assert not torch.equal(other(torch.ones(SIZE, SIZE)), before)
    assert len(casts) == made


def wide():
    """A model for the batches of ``captured``, with two layers in float8."""
    torch.manual_seed(0)
    sizes = [(8, 16), (16, 32), (32, 16), (16, 4)]
    return torch.nn.Sequential(*[each for pair in sizes for each in (torch.nn.Linear(*pair), torch.nn.Tanh())][:-1])


@pytest.mark.parametrize("windows", [1, 2])
@pytest.mark.parametrize("recipe", RECIPES)
def test_captured_steps_train_as_uncaptured_ones(monkeypatch, recipe, windows):
    def feed(run, index):
        if index == 13:
            with torch.no_grad():
                run.model[0][2].weight.mul_(0.5)
        return run.feed(index, bad=index == 11).detach().clone()

    options = {"policy": f"mixed_float8;recipe={recipe};emulate=true", "accumulate_steps": windows, "model": wide}
    runs, given = both(monkeypatch, feed, **options)
    assert_same(runs, given)
    if runs[1].stage is not None:
        assert runs[1].stage.replays >= 9
    for history in zip(*[run.amp.backend.amax_history.read().values() for run in runs], strict=True):
        torch.testing.assert_close(*map(torch.from_numpy, history))
    torch.testing.assert_close(*map(evaluate, runs), rtol=1e-5, atol=1e-5)


def evaluate(run):
    with run.amp.inference(run.model):
        return run.model(run.amp.to_native(torch.ones(16, 8)))
