"""The compiled end of a step against torch's own optimizers and against the reference transition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters

import unifiedamp as ua
from unifiedamp_torch.compiling.compile import ready_dynamo
from unifiedamp_torch.compiling.device_learning_rates import DeviceLearningRates
from unifiedamp_torch.device.fused_optimizers import sparse_weights
from unifiedamp_torch.device.placement import steps_to_device
from unifiedamp_torch.training.compiled_update import MOST_TENSORS, TRACEABLE, CompiledUpdate, compiles, traceable
from unifiedamp_torch.training.kernel_skips import skips_in_kernel, step_in_kernel
from unifiedamp_torch.training.scale_transition import update_scale_by_formula


@pytest.fixture(autouse=True)
def fresh_dynamo():
    ready_dynamo()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tensors(optimizer):
    params = [param for group in optimizer.param_groups for param in group["params"]]
    state = [each for param in params for each in optimizer.state[param].values() if torch.is_tensor(each)]
    return [each.detach().clone().double() for each in (*params, *state)]


def stepped(kind, shapes=((3, 4), (5,)), **options):
    """Return an optimizer that had one step, with gradients for the next."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    optimizer = getattr(torch.optim, kind)(params, lr=0.1, **options)
    for step in (True, False):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator)
        if step:
            optimizer.step()
    return optimizer


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_compiled_once(momentum):
    """Compiling anew would fall into the capture of a step; SGD without momentum keeps no state at all."""
    optimizer = stepped("SGD", momentum=momentum)
    steps_to_device(optimizer)
    update = CompiledUpdate(optimizer)
    counters.clear()
    for _ in range(3):
        update(torch.zeros(()))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("kind", sorted(TRACEABLE))
def test_a_compiled_step_is_the_optimizers_own_or_nothing(kind):
    options = {"momentum": 0.9} if kind == "SGD" else {}
    native, ours = stepped(kind, **options), stepped(kind, **options)
    assert traceable(ours)
    steps_to_device(ours)
    kept = DeviceLearningRates(torch.device("cpu")).install([ours], compiled=True)
    update, before = CompiledUpdate(ours), tensors(ours)
    update(torch.ones(()))
    for one, other in zip(tensors(ours), before, strict=True):
        assert torch.equal(one, other)
    update(torch.zeros(()))
    DeviceLearningRates.restore(kept)
    native.step()
    for one, other in zip(tensors(ours), tensors(native), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert ours.param_groups[0]["lr"] == 0.1
    assert ours.param_groups[0].get("fused") == native.param_groups[0].get("fused")


MANY = [(3,)] * (MOST_TENSORS + 1)


@pytest.mark.parametrize("sparse", [False, True])
def test_sparse_gradients_go_to_no_fused_kernel(sparse):
    model = torch.nn.ModuleList([torch.nn.Embedding(4, 2, sparse=sparse) for _ in MANY])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = DeviceLearningRates(torch.device("cpu"))
    kept = rates.install([optimizer], compiled=True, sparse=sparse_weights(model))
    assert bool(optimizer.param_groups[0]["fused"]) is not sparse
    rates.restore(kept)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_steps_of_many_tensors_run_the_fused_kernel(kind):
    """Compiling them takes longer than compiling the model."""
    options = {"momentum": 0.9} if kind == "SGD" else {}
    native, ours = stepped(kind, MANY, **options), stepped(kind, MANY, **options)
    assert not compiles(ours)
    assert compiles(stepped(kind, MANY[1:], **options))
    kept = DeviceLearningRates(torch.device("cpu")).install([ours], compiled=True)
    before = tensors(ours)
    assert skips_in_kernel(ours)
    step_in_kernel(ours, torch.ones(()))
    for one, other in zip(tensors(ours), before, strict=True):
        assert torch.equal(one, other)
    step_in_kernel(ours, torch.zeros(()))
    DeviceLearningRates.restore(kept)
    assert not skips_in_kernel(ours)
    native.step()
    for one, other in zip(tensors(ours), tensors(native), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_steps_of_many_tensors_are_compiled_where_no_kernel_is_fused():
    assert compiles(stepped("RMSprop", MANY))


def test_a_subclass_is_left_alone():
    class Mine(torch.optim.SGD):
        """A user's own."""

    assert not traceable(Mine([torch.nn.Parameter(torch.ones(1))], lr=0.1))


scales = st.builds(
    ua.DynamicLossScale,
    initial_scale=st.sampled_from([1.0, 4.0, 2.0**16]),
    growth_factor=st.sampled_from([2.0, 1.5]),
    backoff_factor=st.sampled_from([0.5, 0.3]),
    growth_interval=st.integers(1, 4),
    hysteresis=st.integers(1, 3),
    hysteresis_reset=st.sampled_from(["good_step", "growth"]),
    min_scale=st.sampled_from([2.0**-14, 1.0]),
    max_scale=st.sampled_from([2.0**17, 3e38]),
)


@given(scales, st.lists(st.booleans(), max_size=30))
@settings(max_examples=100, deadline=None)
def test_the_moved_scale_is_the_reference(scale, found):
    state = scale.initial_state()
    device = [torch.tensor(state.scale), torch.tensor(0, dtype=torch.int32), torch.tensor(0.0, dtype=torch.float64)]
    spent = torch.tensor(0.0, dtype=torch.float64)
    for bad in found:
        state = scale.next_state(state, bad)
        update_scale_by_formula(scale, *device, torch.tensor(float(bad)), spent if scale.keeps_hysteresis else None)
        assert spent.item() == state.hysteresis_steps
        assert [each.item() for each in device] == [state.scale, state.good_steps, state.bad_steps]
