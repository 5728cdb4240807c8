"""``Amp(reduce_dtype=...)``: the dtype in which ranks sum gradients. Processes joined by gloo.

The expected gradients are computed in numpy's float64, rounded where the ranks round.
"""

import os
from contextlib import contextmanager
from itertools import combinations
from unittest import mock

import numpy as np
import pytest
import torch
from ranks import checked, run_ranks

import unifiedamp as ua

DTYPES = ["float32", "bfloat16", "float16"]
VALUES = np.array([[1 + 2**-9, 3.1, -2e-3, 1e-9], [1.0, 7.7, 5e-4, 3e-9]])
"""The gradient of each rank."""


def rounded(values, dtype):
    """Return float64 values rounded to a dtype, ties to even, by numpy alone."""
    if dtype == "bfloat16":
        bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(dtype).astype(np.float64)


def mean_of(values, dtype, scale=1.0):
    """Return what the ranks agree on: each divides by the number of ranks and rounds, then they add and round."""
    low = [rounded(np.float32(row * scale).astype(np.float64) / len(values), dtype) for row in values]
    return rounded(sum(low), dtype) / scale


class Weights(torch.nn.Module):
    """A model whose gradient is its input."""

    def __init__(self, count=4, dtype=torch.float32):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(count, dtype=dtype))

    def forward(self, x):
        return (self.weight * x).sum()


@contextmanager
def closing(amp):
    try:
        yield amp
    finally:
        amp.close()


def wrapped(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def sharded(model, amp):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mp_policy=amp.mp_policy())


def gradient_of(model):
    grad = model.module.weight.grad if hasattr(model, "module") else model.weight.grad
    return (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).double().tolist()


def train(amp, model, values, dtype=torch.float32):
    """Run one step; return the result, the gradient before it was unscaled, and the weights."""
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    x = torch.tensor(values, dtype=dtype)
    amp.backward(lambda: model(x), optimizer)
    gradient = gradient_of(model)
    result = amp.step(optimizer)
    (weights,) = amp.master_weights(model).values()
    return result.applied, amp.loss_scale, gradient, weights.tolist()


def values_of(rank, how, dtype):
    amp = ua.Amp("torch", "float32", device="cpu", reduce_dtype=dtype, loss_scale=1.0)
    with closing(amp):
        model = wrapped(Weights()) if how == "ddp" else sharded(Weights(), amp)
        answer = train(amp, model, VALUES[rank])
        rows = {row.setting: (row.value, row.native) for row in amp.explain()}
        return answer, rows["gradients of ranks"]


def overflow_of(rank, how, dtype):
    """Rank 0 has a gradient that float32 holds and float16 does not."""
    amp = ua.Amp(
        "torch", "float32", device="cpu", reduce_dtype=dtype, loss_scale=ua.DynamicLossScale(initial_scale=4.0)
    )
    with closing(amp):
        model = wrapped(Weights()) if how == "ddp" else sharded(Weights(), amp)
        return train(amp, model, [1.0, 1e5 if rank == 0 else 1.0, 1.0, 1.0])


def message_of(make):
    try:
        make()
    except ua.AmpError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def prepared_with(amp, model):
    return amp.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))


def refusals(rank):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.distributed.fsdp import fully_shard

    from unifiedamp_torch.compiling.shared_models import why_uncaptured

    hooked = wrapped(Weights())
    hooked.register_comm_hook(None, fp16_compress_hook)

    def amp(dtype="bfloat16", **settings):
        return ua.Amp("torch", "float32", device="cpu", reduce_dtype=dtype, **settings)

    twice = wrapped(Weights())
    prepared_with(amp(), twice)
    return {
        "hook": message_of(lambda: prepared_with(amp(), hooked)),
        "kept": message_of(lambda: prepared_with(amp(None), hooked)),
        "again": message_of(lambda: prepared_with(amp(), twice)),
        "other": message_of(lambda: prepared_with(amp("float32"), twice)),
        "policy": message_of(lambda: prepared_with(amp(), fully_shard(Weights()))),
        "plain": message_of(lambda: prepared_with(amp(strict=True), Weights())),
        "captured": why_uncaptured([twice], "cpu"),
        "ranks": message_of(lambda: prepared_with(amp(DTYPES[rank]), wrapped(Weights()))),
    }


def cast_later(rank):
    """A model that prepare casts to bfloat16 sums in float32; its reducer is made anew, and has the hook."""
    seen, real = [], torch.distributed.all_reduce

    def all_reduce(tensor, *args, **kwargs):
        seen.append((tensor.numel(), str(tensor.dtype)))
        return real(tensor, *args, **kwargs)

    amp = ua.Amp("torch", "bfloat16", device="cpu", reduce_dtype="float32")
    with closing(amp), mock.patch("torch.distributed.all_reduce", all_reduce):
        values = [1.0, 1 + 2**-7, 0.0, 0.0] if rank else [3.0, 0.0, 0.0, 5.0]
        return train(amp, wrapped(Weights()), values, torch.bfloat16), seen


def sparse(rank):
    amp = ua.Amp("torch", "float32", device="cpu", reduce_dtype="bfloat16")
    with closing(amp):
        model = wrapped(torch.nn.Embedding(3, 1, sparse=True, _weight=torch.zeros(3, 1)))
        model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
        amp.backward(lambda: (model(torch.tensor([rank, 2])) * (1 + 2**-9)).sum(), optimizer)
        amp.step(optimizer)
        return next(iter(amp.master_weights(model).values())).ravel().tolist()


def window(rank):
    """Two micro-batches, captured in no graph: they are reduced once, rounded once."""
    amp = ua.Amp("torch", "float32", device="cpu", reduce_dtype="bfloat16", accumulate_steps=2)
    with closing(amp):
        model = wrapped(Weights())
        model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
        for part in (0.25, 0.75):
            with amp.autocast():
                loss = model(torch.tensor(VALUES[rank] * part, dtype=torch.float32))
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            amp.step(optimizer)
        return next(iter(amp.master_weights(model).values())).tolist()


def everything(rank):
    """Run all cases in one group of processes: starting one takes longer than all of them."""
    values = {(how, dtype): values_of(rank, how, dtype) for how in ("ddp", "fsdp") for dtype in [None, *DTYPES]}
    overflows = {(how, d): overflow_of(rank, how, d) for how in ("ddp", "fsdp") for d in ("float16", "bfloat16", None)}
    found = {"values": values, "overflows": overflows, "cast": cast_later(rank), "sparse": sparse(rank)}
    return {**found, "window": window(rank), "refusals": refusals(rank)}


@pytest.fixture(scope="module")
def ranks():
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return checked(run_ranks(everything))


@pytest.mark.parametrize("dtype", [None, *DTYPES])
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_gradients_are_summed_in_the_dtype(ranks, how, dtype):
    expected = mean_of(VALUES, dtype or "float32")
    (_, _, gradient, weights), row = ranks[0]["values"][how, dtype]
    np.testing.assert_allclose(gradient, expected, rtol=2e-7, atol=0)
    np.testing.assert_allclose(weights, -expected, rtol=2e-7, atol=0)
    assert ranks[1]["values"][how, dtype][0] == ranks[0]["values"][how, dtype][0]
    assert row[0] == f"reduced in {dtype or 'float32'}"
    assert ("register_comm_hook" in row[1]) == (how == "ddp" and dtype is not None)


def test_the_dtypes_differ_in_the_test():
    """A sum in the wrong dtype would not pass."""
    for one, other in combinations([mean_of(VALUES, dtype) for dtype in DTYPES], 2):
        assert not np.allclose(one, other, rtol=1e-5, atol=0)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_an_overflow_that_the_sum_made_skips_on_all_ranks(ranks, how):
    for rank in ranks:
        applied, scale, _, weights = rank["overflows"][how, "float16"]
        assert (applied, scale, weights) == (False, 2.0, [0.0] * 4)
        for dtype in ("bfloat16", None):
            applied, scale, _, weights = rank["overflows"][how, dtype]
            assert (applied, scale) == (True, 4.0)
            expected = mean_of(np.array([[1, 1e5, 1, 1], [1, 1, 1, 1]]), dtype or "float32", 4.0)
            np.testing.assert_allclose(weights, -expected, rtol=2e-7)


def test_a_sum_in_float32_of_bfloat16_gradients(ranks):
    for rank in ranks:
        (applied, _, gradient, weights), seen = rank["cast"]
        assert applied
        assert gradient == [2.0, 0.5 + 2**-8, 0.0, 2.5]
        assert weights == [-value for value in gradient]
        assert seen == [(4, "torch.float32")]


def test_sparse_gradients_keep_their_dtype(ranks):
    half = (1 + 2**-9) / 2
    assert ranks[0]["sparse"] == ranks[1]["sparse"] == [-half, -half, -2 * half]


def test_a_window_is_rounded_once(ranks):
    parts = np.float32(VALUES * 0.25).astype(np.float64) / 2 + np.float32(VALUES * 0.75).astype(np.float64) / 2
    for rank in ranks:
        np.testing.assert_allclose(rank["window"], -mean_of(parts, "bfloat16"), rtol=2e-7)


REFUSED = {
    "hook": "PrepareError: reduce_dtype='bfloat16': this DistributedDataParallel has the comm hook fp16_compress_hook",
    "other": "PrepareError: reduce_dtype='float32': this DistributedDataParallel has the comm hook reduce_in",
    "policy": "PrepareError: reduce_dtype='bfloat16': FSDPWeights was sharded to reduce in float32; shard it with",
    "plain": "PolicyNotSupportedError: reduce_dtype='bfloat16' has no effect on Weights: neither",
    "ranks": "PrepareError: amp.prepare: ranks that train together need the same settings, and reduce_dtype is float32",
    "captured": "",
    "kept": "",
    "again": "",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_reduces_otherwise_is_refused(ranks, case):
    for rank in ranks:
        found, said = rank["refusals"][case], REFUSED[case]
        assert found.startswith(said) if said else not found


def test_one_process_sums_nothing():
    amp = ua.Amp("torch", "float32", device="cpu", reduce_dtype="bf16")
    applied, _, gradient, _ = train(amp, Weights(), VALUES[0])
    assert applied
    assert gradient == [float(np.float32(value)) for value in VALUES[0]]
    row = next(row for row in amp.explain() if row.setting == "gradients of ranks")
    assert (row.value, row.effect) == ("bfloat16", "no effect")
