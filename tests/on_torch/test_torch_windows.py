"""Accumulation windows of several ranks: gradients are reduced once. Two processes joined by gloo."""

import math

import pytest
import torch
from loops import batch, session
from ranks import run_ranks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unifiedamp as ua

STEPS, WINDOWS = 3, 2
ROWS = 32


class Counted:
    """A linear model in DistributedDataParallel that counts its reductions; all its parameters are in one bucket.

    Args:
        policy, options: of the session.
    """

    def __init__(self, policy="float32", **options):
        torch.manual_seed(0)
        self.reductions = 0
        self.amp = session(policy, accumulate_steps=STEPS, loss_scale=8.0, **options)
        wrapped = DistributedDataParallel(torch.nn.Linear(8, 4))
        wrapped.register_comm_hook(None, self._reduce)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5)
        self.model, self.optimizer = self.amp.prepare(wrapped, optimizer)

    def _reduce(self, _state, bucket):
        self.reductions += 1
        mean = bucket.buffer().div(torch.distributed.get_world_size())
        return torch.distributed.all_reduce(mean, async_op=True).get_future().then(lambda done: done.value()[0])

    def micro_batch(self, seed, rows, factor=1.0):
        """Train on one micro-batch, by the two blocks or by ``amp.backward``; return the step's reason."""
        x, y = (each[rows] for each in batch(seed))
        if seed % 2:
            with self.amp.autocast():
                loss = cross_entropy(self.model(x * factor), y)
            with self.amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            self.amp.backward(lambda: cross_entropy(self.model(x * factor), y), self.optimizer)
        return self.amp.step(self.optimizer).reason

    def weights(self):
        return [array.tolist() for array in self.amp.master_weights(self.model).values()]


def expected(seeds, dtype=torch.float32):
    """The weights after windows of whole batches, by plain torch on one process."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    for start in range(0, len(seeds), STEPS):
        model.zero_grad()
        sum(cross_entropy(model(x), y) / STEPS for x, y in map(batch, seeds[start : start + STEPS])).backward()
        with torch.no_grad():
            for param in model.parameters():
                param -= 0.5 * param.grad
    return [param.tolist() for param in model.parameters()]


def close(answers, weights, tolerance=1e-5):
    for answer in answers:
        assert not isinstance(answer, str), answer
        for found, wanted in zip(answer[0], weights, strict=True):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=tolerance, atol=tolerance)
    assert answers[0][0] == answers[1][0]
    return [answer[1:] for answer in answers]


def trained(rank):
    run = Counted()
    half = slice(ROWS // 2 * rank, ROWS // 2 * (rank + 1))
    after = []
    for seed in range(STEPS * WINDOWS):
        run.micro_batch(seed, half)
        after.append(run.reductions)
        assert run.model.require_backward_grad_sync, "outside a micro-batch the model reduces as ever"
    return run.weights(), after


def test_a_window_is_reduced_once():
    assert close(run_ranks(trained), expected(range(6))) == [([0, 0, 1, 1, 1, 2],)] * 2


def discarding(rank, how):
    run = Counted()
    half = slice(ROWS // 2 * rank, ROWS // 2 * (rank + 1))
    run.micro_batch(50, half)
    if how == "discard":
        run.amp.discard_step(run.optimizer)
    elif how == "exception":
        with pytest.raises(ZeroDivisionError):
            run.amp.backward(lambda: 1 / 0, run.optimizer)
    else:
        run.micro_batch(51, half, math.inf if rank == 0 else 1.0)
        assert run.micro_batch(52, half) == "non_finite"
    for seed in range(STEPS):
        assert run.micro_batch(seed, half) == ("applied" if seed == STEPS - 1 else "accumulating")
    return run.weights(), run.amp.loss_scale


@pytest.mark.parametrize("how", ["discard", "exception", "overflow"])
def test_a_window_that_is_dropped_leaves_nothing(how):
    assert close(run_ranks(discarding, how), expected(range(3))) == [(8.0,)] * 2


def masters(rank):
    run = Counted("bfloat16", master_weights=True)
    half = slice(ROWS // 2 * rank, ROWS // 2 * (rank + 1))
    for seed in range(STEPS):
        run.micro_batch(seed, half)
    return run.weights(), run.reductions


def test_master_weights_get_reduced_gradients():
    assert close(run_ranks(masters), expected(range(3)), 2.0**-6) == [(STEPS,)] * 2


def early(rank):
    torch.manual_seed(0)
    wrapped = DistributedDataParallel(torch.nn.Linear(8, 4))
    amp = session(accumulate_steps=STEPS)
    optimizers = [torch.optim.SGD([param], lr=0.5) for param in wrapped.parameters()]
    model, *optimizers = amp.prepare(wrapped, *optimizers)
    x, y = (each[ROWS // 2 * rank : ROWS // 2 * (rank + 1)] for each in batch(0))
    for _ in range(STEPS - 1):
        amp.backward(lambda: cross_entropy(model(x), y), optimizers)
        with amp.autocast():
            loss = cross_entropy(model(x), y)  # the next micro-batch's, before this one's steps
        for optimizer in optimizers:
            amp.step(optimizer)
    with amp.scale_loss(loss, optimizers) as scaled_loss:
        scaled_loss.backward()
    before = amp.master_weights(model)
    for optimizer in optimizers:
        with pytest.raises(ua.StepOrderError, match="gradients were not reduced over the ranks: enter amp.autocast"):
            amp.step(optimizer)
        amp.discard_step(optimizer)
    assert all((array == before[name]).all() for name, array in amp.master_weights(model).items())
    for seed in range(STEPS):
        x, y = (each[ROWS // 2 * rank : ROWS // 2 * (rank + 1)] for each in batch(seed))
        amp.backward(lambda x=x, y=y: cross_entropy(model(x), y), optimizers)
        for optimizer in optimizers:
            amp.step(optimizer)
    return [array.tolist() for array in amp.master_weights(model).values()], amp.applied_steps


def test_gradients_that_were_not_reduced_are_refused():
    assert close(run_ranks(early), expected(range(3))) == [(2,)] * 2


def noise(rank, step):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(8, 4, generator=generator), torch.randn(8, 8, generator=generator)


def duel(ranks, wrap):
    """Train a generator and a discriminator on the batches of some ranks; return reasons and weights."""
    torch.manual_seed(0)
    generator, discriminator = wrap(torch.nn.Linear(4, 8)), wrap(torch.nn.Linear(8, 1))
    amp = session(accumulate_steps=2, loss_scale=ua.DynamicLossScale(initial_scale=8.0, growth_interval=2))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (generator, discriminator)]
    generator, discriminator, makes, judges = amp.prepare(generator, discriminator, *optimizers)
    reasons = []
    for step in range(8):
        seed, real = (torch.cat(parts) for parts in zip(*[noise(rank, step) for rank in ranks], strict=True))
        real = real * math.inf if step == 5 else real
        with amp.autocast():
            fake = generator(seed)
            loss = (discriminator(real) ** 2).mean() + ((discriminator(fake.detach()) - 1) ** 2).mean()
        with amp.scale_loss(loss, judges) as scaled_loss:
            scaled_loss.backward()
        reasons.append(amp.step(judges).reason)
        with amp.autocast():
            loss = (discriminator(fake) ** 2).mean()
        with amp.scale_loss(loss, makes) as scaled_loss:
            scaled_loss.backward()
        reasons.append(amp.step(makes).reason)
    weights = [array.tolist() for each in (generator, discriminator) for array in amp.master_weights(each).values()]
    scale = amp.loss_scale
    amp.close()
    return weights, reasons, scale, getattr(generator, "require_backward_grad_sync", True)


def dueling(rank):
    return duel([rank], DistributedDataParallel)


def test_windows_of_two_optimizers_are_those_of_one_process():
    weights, *rest = duel([0, 1], lambda model: model)
    assert close(run_ranks(dueling), weights) == [tuple(rest)] * 2
    assert rest[0].count("non_finite") == 1


class Shards(torch.nn.Module):
    """Two sharded layers; the second is left out where its input is."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)

    def forward(self, x, both=True):
        return self.first(x) + self.second(x) if both else self.first(x)


SCATTERS = "reduce_scatter_single", "reduce_scatter_tensor"
"""What ``fully_shard`` reduces by; the second name is that of torch 2.12 and earlier."""


def whole_model():
    torch.manual_seed(0)
    return Shards()


def counted_shards(monkeypatch, **options):
    """Return a session, its model and optimizer, and a list that grows with each reduce-scatter."""
    from torch.distributed.fsdp import fully_shard

    amp, model, reduced = (
        session("mixed_bfloat16", accumulate_steps=STEPS, loss_scale=8.0, **options),
        whole_model(),
        [],
    )
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    for module in (model.first, model.second, model):
        fully_shard(module, mesh=mesh, mp_policy=amp.mp_policy())
    name = next(each for each in SCATTERS if hasattr(torch.distributed, each))
    scatter = getattr(torch.distributed, name)
    monkeypatch.setattr(torch.distributed, name, lambda *args, **more: (reduced.append(1), scatter(*args, **more))[1])
    return amp, *amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5)), reduced


def shards(rank, case):
    """Train two windows of halves of batches; return the weights, and how many reductions there were after each part.

    Before them, in the case "dropped", a window that is dropped; the last micro-batch leaves a layer out in "unused".
    """
    monkeypatch = pytest.MonkeyPatch()
    options = {"backend_options": {"torch": {"shards_reduce_once": False}}} if case == "each" else {}
    amp, model, optimizer, reduced = counted_shards(monkeypatch, **options)
    half = slice(ROWS // 2 * rank, ROWS // 2 * (rank + 1))
    after = []
    if case == "dropped":
        amp.backward(lambda: model(batch(50)[0][half]).sum(), optimizer)
        amp.step(optimizer)
        amp.discard_step(optimizer)
    for seed in range(STEPS * WINDOWS):
        x, y = (each[half] for each in batch(seed))
        both = case != "unused" or seed % STEPS != STEPS - 1
        amp.backward(lambda x=x, y=y, both=both: cross_entropy(model(x, both).float(), y), optimizer)
        amp.step(optimizer)
        after.append(len(reduced))
    monkeypatch.undo()
    return (
        [array.tolist() for array in amp.master_weights(model).values()],
        after,
        amp.explain().row("gradients of ranks").note,
    )


def of_whole_batches(case):
    model = whole_model()
    for seed in range(STEPS * WINDOWS):
        x, y = batch(seed)
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x, case != "unused" or seed % STEPS != STEPS - 1)
        (cross_entropy(out.float(), y) / STEPS).backward()
        if seed % STEPS == STEPS - 1:
            with torch.no_grad():
                for param in model.parameters():
                    param -= 0.5 * param.grad
            model.zero_grad()
    return [param.tolist() for param in model.parameters()]


def all_shards(rank):
    return {case: shards(rank, case) for case in SHARDS}


SHARDS = {
    "once": [0, 0, 2, 2, 2, 4],
    "dropped": [0, 0, 2, 2, 2, 4],
    "unused": [0, 0, 2, 2, 2, 4],
    "each": [2, 4, 6, 8, 10, 12],
}


def test_sharded_models_reduce_once_per_window():
    answers = run_ranks(all_shards)
    for case, counts in SHARDS.items():
        for answer in answers:
            assert not isinstance(answer, str), answer
            weights, reductions, note = answer[case]
            assert reductions == counts, case
            assert ("once per window" in note) is (case != "each")
            for found, wanted in zip(weights, of_whole_batches(case), strict=True):
                torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=2.0**-7, atol=2.0**-7)
