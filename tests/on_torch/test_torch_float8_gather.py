"""``float8_all_gather``: what ``fully_shard`` gathers in float8 trains bit for bit as what it gathers in float32."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from loops import session
from ranks import checked, run_ranks

import unifiedamp as ua

POLICIES = ["mixed_float8;emulate=true", "mixed_float8;recipe=delayed;amax_history=3;emulate=true"]
STEPS = 4


class Blocks(torch.nn.Module):
    """Two blocks of float8 layers, and one that is too odd for float8."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)) for _ in range(2)
        )
        self.head = torch.nn.Linear(32, 3)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def sharded(ranks):
    from torch.distributed.fsdp import fully_shard

    model, mesh = Blocks(), dist.init_device_mesh("cpu", (ranks,))
    for each in (*model.blocks, model):
        fully_shard(each, mesh=mesh)
    return model


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 32, generator=generator), torch.randn(16, 3, generator=generator)


@contextmanager
def counted(counts):
    """Count the bytes that this rank gathers, and its all-reduces of one number for each of the four layers."""
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    gather, reduce = getattr(dist, name), dist.all_reduce

    def gathered(output_tensor, input_tensor, *args, **kwargs):
        counts["bytes"] += input_tensor.nbytes
        return gather(output_tensor, input_tensor, *args, **kwargs)

    def reduced(tensor, *args, **kwargs):
        counts["reductions"] += tensor.numel() == 4
        return reduce(tensor, *args, **kwargs)

    setattr(dist, name, gathered)
    dist.all_reduce = reduced
    try:
        yield
    finally:
        setattr(dist, name, gather)
        dist.all_reduce = reduce


def train(rank, ranks, policy, gathers, windows=1, backend=None, bad=None):
    """Train; return weights, decision and counts after each micro-batch, the row of ``explain()``, and what the model
    computes after the session.
    """
    options = {"float8_all_gather": True} if gathers else {}
    scale = ua.DynamicLossScale(8.0)
    amp = session(policy, backend_options={"torch": options}, accumulate_steps=windows, loss_scale=scale)
    model = sharded(ranks)
    model, optimizer = amp.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    for block in model.blocks if backend else ():
        block.compile(backend=backend)
    found = []
    for at in range(STEPS):
        x, y = batch(at, rank)
        if bad == at and rank == 1:
            with torch.no_grad():
                model.blocks[0][0].weight.to_local()[0, 0] = torch.inf
        counts = {"bytes": 0, "reductions": 0}
        with counted(counts):
            with amp.autocast():
                loss = (model(x).float() - y).square().mean()
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            result = amp.step(optimizer)
        weights = {name: each.tolist() for name, each in amp.master_weights(model).items()}
        found.append((weights, result.applied, counts))
    rows = [row.value for row in amp.explain() if row.setting == "float8 all-gather"]
    amp.close()
    with torch.no_grad():
        return found, rows, model(batch(0, rank)[0]).tolist()


def compare(rank, ranks, policy, options):
    return [train(rank, ranks, policy, gathers, **options) for gathers in (False, True)]


@pytest.mark.parametrize(
    ("ranks", "policy", "options"),
    [
        (2, POLICIES[1], {}),
        (3, POLICIES[0], {}),  # 64 and 32 rows do not divide by 3
        (2, POLICIES[0], {"windows": 2}),
        (2, POLICIES[0], {"backend": "aot_eager"}),
    ],
    ids=["delayed", "uneven", "window", "compiled"],
)
def test_training_is_bit_equal_to_that_of_weights_gathered_whole(ranks, policy, options):
    (plain, none, output), (low, rows, twin_output) = checked(run_ranks(compare, ranks, policy, options, count=ranks))[
        0
    ]
    assert (none, rows) == ([], ["4 weights"])
    assert output == twin_output, "after the session, weights are gathered whole"
    windows = options.get("windows", 1)
    for at, ((weights, applied, counts), (twin, twin_applied, fewer)) in enumerate(zip(plain, low, strict=True)):
        assert weights == twin
        assert applied == twin_applied
        assert counts["reductions"] == 0
        assert fewer["reductions"] == (at % windows == 0), "one for all scales, in each window"
        assert 0 < fewer["bytes"] < 0.4 * counts["bytes"]


def test_an_inf_on_one_rank_skips_the_step_on_all():
    for found, _, _ in checked(run_ranks(train, 2, POLICIES[0], True, 1, None, 1)):
        assert [applied for _, applied, _ in found[:2]] == [True, False]


def test_other_recipes_and_schedules_are_refused():
    options = {"torch": {"float8_all_gather": True}}
    for policy, more in (
        ("mixed_bfloat16", {}),
        ("mixed_float8;recipe=rowwise;emulate=true", {}),
        (None, {"schedule": {0: POLICIES[0], 2: "mixed_bfloat16"}}),
    ):
        with pytest.raises(ua.ConfigError, match=r"float8_all_gather needs policy 'mixed_float8'"):
            session(policy, backend_options=options, **more)


def test_a_model_that_gathers_nothing_is_warned_of():
    amp = session(POLICIES[0], backend_options={"torch": {"float8_all_gather": True}})
    model = Blocks()
    with pytest.warns(ua.PolicyWarning, match="float8_all_gather has no effect on Blocks"):
        amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
