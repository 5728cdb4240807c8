"""The table of device traits: what the parts of the backend answer follows from one row."""

import math
from dataclasses import replace

import pytest
import torch
from loops import mlp, session

import unifiedamp as ua
from unifiedamp_torch.capabilities import capabilities
from unifiedamp_torch.compiling.compile import untraced_modules
from unifiedamp_torch.device import kinds
from unifiedamp_torch.device.fused_optimizers import why_not_fused
from unifiedamp_torch.device.tuning import support
from unifiedamp_torch.explain import device_row
from unifiedamp_torch.precision import operations
from unifiedamp_torch.precision.layers import rnns_need_float32
from unifiedamp_torch.training import gradients

BF16 = ua.Policy(compute_dtype="bfloat16")


@pytest.mark.parametrize("kind", ["hpu", "xpu", "mps"])
def test_a_kind_of_device_without_a_row_claims_nothing(kind):
    found = kinds.traits(kind)
    assert not found.captures_graphs
    assert not found.reads_without_sync
    device = torch.device(kind)
    assert not found.float8(device)
    assert not support(device)["tf32"]
    assert not support(device)["cudnn_benchmark"]
    assert f"torch's {kind} autocast" in capabilities(device, emulate=False).policies["mixed_bfloat16"].reason


def test_what_the_rows_say_of_each_kind():
    assert [name for name, row in kinds.TRAITS.items() if row.reads_without_sync] == ["cpu"]
    assert [name for name, row in kinds.TRAITS.items() if row.captures_graphs] == ["cuda"]
    assert kinds.traits("mps").wide_dtype is torch.float32
    assert {name: operations.key(name) for name in ("cpu", "cuda", "xpu", "mps")} == {
        "cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU", "mps": "",
    }  # fmt: skip
    assert [name for name in kinds.TRAITS if rnns_need_float32(BF16, name)] == ["cuda"]
    assert device_row(torch.device("cuda:0"), True).note
    assert not device_row(torch.device("cpu"), True).note


def test_op_overrides_are_refused_without_a_dispatch_key(monkeypatch):
    monkeypatch.setitem(kinds.TRAITS, "cpu", replace(kinds.TRAITS["cpu"], autocast_key=""))
    assert not session().capabilities.feature("op_overrides")
    with pytest.raises(ua.UnsupportedError, match="op_overrides"):
        session(ua.Policy(compute_dtype="bfloat16", op_overrides={"softmax": "compute"}))


@pytest.mark.parametrize(
    "traits",
    [
        {"fused_optimizers": frozenset({"Adam"})},
        {"fused_optimizers": None, "unfused_optimizers": kinds.TRAITS["cuda"].unfused_optimizers},
    ],
)
def test_an_optimizer_without_a_kernel_on_the_device_is_not_fused(monkeypatch, traits):
    """torch has no kernel of Adagrad on CUDA."""
    optimizer = torch.optim.Adagrad(mlp().parameters())
    assert why_not_fused(optimizer) == ""
    monkeypatch.setitem(kinds.TRAITS, "cpu", replace(kinds.TRAITS["cpu"], **traits))
    assert why_not_fused(optimizer).startswith("Adagrad is not fused on cpu")
    assert why_not_fused(torch.optim.Adam(mlp().parameters())) == ""


@pytest.mark.parametrize("bad", [None, math.inf, -math.inf, math.nan])
def test_bfloat16_gradients_are_unscaled_where_the_kernel_does_not_take_them(monkeypatch, bad):
    def unscaled():
        generator = torch.Generator().manual_seed(0)
        params = [torch.nn.Parameter(torch.zeros(size, dtype=torch.bfloat16)) for size in (3, 0, 1000)]
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).bfloat16()
        if bad is not None:
            params[2].grad[7] = bad  # the last one: each is checked
        optimizer, found = torch.optim.SGD(params), torch.zeros(())
        assert gradients.unscale(optimizer, torch.tensor(1 / 3), found)
        return torch.cat([param.grad for param in params]).view(torch.int16), found

    native, expected = unscaled()
    monkeypatch.setitem(kinds.TRAITS, "cpu", replace(kinds.TRAITS["cpu"], unscales_bfloat16=False))
    plain, found = unscaled()
    assert found == expected == (bad is not None)
    assert torch.equal(plain, native)


def test_a_device_that_captures_graphs_replays_traces(monkeypatch):
    assert not session().backend.compiler.replays_traces
    monkeypatch.setitem(kinds.TRAITS, "cpu", replace(kinds.TRAITS["cpu"], captures_graphs=True))
    assert session().backend.compiler.replays_traces


def test_kernels_are_profiled_where_the_row_says_so(monkeypatch):
    assert session().capabilities.feature("kernel_profile").reason == "there are no Tensor Cores on this device"
    monkeypatch.setitem(kinds.TRAITS, "cpu", replace(kinds.TRAITS["cpu"], profiles_kernels=True))
    assert session().capabilities.feature("kernel_profile").reason == "torch.profiler"


def test_dynamo_traces_compiled_updates_and_no_other_part_of_a_step():
    untraced = untraced_modules()
    for traced in (
        "training.compiled_update",
        "training.rounded_update",
        "training.scale_transition",
        "precision.casts",
    ):
        assert f"unifiedamp_torch.{traced}" not in untraced
    for left in ("training.training", "training.scale_state", "compiling", "device", "backend"):
        assert f"unifiedamp_torch.{left}" in untraced
