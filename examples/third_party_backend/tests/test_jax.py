"""JAX-specific tests: closures over modules, traces and their keys, Flax's dtypes, optimizers without a model."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from unifiedamp_jax import Optimizer, promote_dtype

import unifiedamp as ua

DYNAMIC = ua.DynamicLossScale(initial_scale=4.0, growth_interval=3)


class Net(nnx.Module):
    def __init__(self, **options):
        rngs = nnx.Rngs(0)
        self.body = nnx.Linear(4, 8, rngs=rngs, **options)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(self.drop(self.norm(self.body(x))))


def prepared(policy="float32", model=None, tx=None, **options):
    amp = ua.Amp("jax", policy, **options)
    model = model or Net()
    return amp, *amp.prepare(model, Optimizer(model, tx or optax.sgd(0.1)))


X = jnp.ones((3, 4))


def test_a_submodule_closed_over_by_itself_gets_its_gradients():
    amp, model, optimizer = prepared()
    body = model.body
    amp.backward(lambda: jnp.square(body(X)).mean(), optimizer)
    grads = amp.gradients(optimizer)
    expected = jax.grad(lambda kernel: jnp.square(X @ kernel).mean())(model.body.kernel.get_value())
    np.testing.assert_allclose(grads["body.kernel"], expected, rtol=1e-5)
    assert not grads["head.kernel"].any()


@pytest.mark.parametrize("compiled", [False, True])
def test_random_numbers_go_on_from_step_to_step(compiled):
    amp, model, optimizer = prepared(tx=optax.sgd(0.0))

    def step():
        loss = amp.backward(lambda: jnp.square(model(X)).mean(), optimizer)
        amp.step(optimizer)
        return loss

    step = amp.compile(step) if compiled else step
    assert len({float(step()) for _ in range(4)}) > 1


def test_a_function_jitted_by_anyone_follows_the_region():
    amp, model, _ = prepared("mixed_bfloat16")
    body = nnx.jit(lambda model, x: model.body(x))
    assert body(model, X).dtype == jnp.float32
    with amp.autocast():
        assert body(model, X).dtype == jnp.bfloat16
    assert body(model, X).dtype == jnp.float32


def test_one_trace_serves_applied_and_skipped_steps():
    amp, model, optimizer = prepared(loss_scale=DYNAMIC)
    traces = []

    @amp.compile
    def step(x):
        traces.append(1)
        amp.backward(lambda: jnp.square(model(x)).mean(), optimizer)
        amp.step(optimizer)

    for factor in (1.0, np.inf, 1.0, 1.0, 1.0):
        step(X * factor)
    assert (amp.applied_steps, amp.skipped_steps, amp.loss_scale) == (4, 1, 4.0)
    assert len(traces) == 1


def test_a_compiled_step_is_traced_anew_in_evaluation_mode():
    amp, model, _ = prepared()
    call = amp.compile(lambda x: model(x))
    with amp.inference(model):
        np.testing.assert_array_equal(call(X), call(X))
    assert not np.array_equal(call(X), call(X))


def test_a_step_result_cannot_be_read_while_tracing():
    amp, model, optimizer = prepared(loss_scale=DYNAMIC)

    @amp.compile
    def step():
        amp.backward(lambda: jnp.square(model(X)).mean(), optimizer)
        return amp.step(optimizer).applied

    with pytest.raises(ua.StepOrderError, match="inside a compiled step"):
        step()
    amp.backward(lambda: jnp.square(model(X)).mean(), optimizer)
    assert amp.step(optimizer).applied


@pytest.mark.parametrize("jit", [jax.jit, nnx.jit])
def test_a_step_under_somebody_elses_jit_is_refused(jit):
    amp, model, optimizer = prepared()
    with pytest.raises(ua.StepOrderError, match="amp.compile"):
        jit(lambda: amp.backward(lambda: jnp.square(model(X)).mean(), optimizer))()
    amp.backward(lambda: jnp.square(model(X)).mean(), optimizer)
    assert amp.step(optimizer).applied


def test_the_context_form_is_refused_and_nothing_is_lost():
    amp, model, optimizer = prepared()
    with amp.autocast():
        loss = jnp.square(model(X)).mean()
    with pytest.raises(ua.UnsupportedError, match=r"amp\.backward"):
        amp.scale_loss(loss, optimizer)
    with pytest.raises(ua.StepOrderError):
        amp.step(optimizer)


def test_an_error_in_the_closure_leaves_the_model_as_it_was():
    amp, model, optimizer = prepared()
    kernel = model.body.kernel
    with pytest.raises(ZeroDivisionError):
        amp.backward(lambda: model(X) / (1 // 0), optimizer)
    assert model.body.kernel is kernel
    assert isinstance(kernel.get_value(), jax.Array)
    assert not isinstance(kernel.get_value(), jax.core.Tracer)


@pytest.mark.parametrize("loss", [lambda out: out, lambda out: 3.0, lambda out: out.sum().astype(jnp.int32)])
def test_what_is_no_loss(loss):
    amp, model, optimizer = prepared()
    with pytest.raises(ua.LossError):
        amp.backward(lambda: loss(model(X)), optimizer)


def test_optimizers_of_flax_itself():
    for make in (nnx.Optimizer, nnx.ModelAndOptimizer):
        model = Net()
        amp = ua.Amp("jax", "float32")
        model, optimizer = amp.prepare(model, make(model, optax.sgd(0.1), wrt=nnx.Param))
        before = model.head.bias.get_value()
        amp.backward(lambda model=model: jnp.square(model(X) - 1).mean(), optimizer)
        amp.step(optimizer)
        assert not np.array_equal(model.head.bias.get_value(), before)


def test_an_optimizer_that_could_mean_either_model():
    one, two = Net(), Net()
    with pytest.raises(ua.PrepareError, match="unifiedamp_jax.Optimizer"):
        ua.Amp("jax", "float32").prepare(one, two, nnx.Optimizer(one, optax.sgd(0.1), wrt=nnx.Param))


def test_an_optimizer_whose_slots_are_of_another_model():
    model, other = Net(), nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ua.PrepareError, match="slots"):
        ua.Amp("jax", "float32").prepare(model, nnx.Optimizer(other, optax.adam(0.1), wrt=nnx.Param))


def test_a_bare_optax_transformation():
    with pytest.raises(ua.WrongObjectError, match="unifiedamp_jax.Optimizer"):
        ua.Amp("jax", "float32").prepare(Net(), optax.sgd(0.1))


def test_norms_stay_in_float32_and_a_layers_own_dtype_wins():
    amp, model, _ = prepared("mixed_bfloat16", Net(dtype=jnp.float32))
    with amp.autocast():
        assert model.body(X).dtype == jnp.float32
        assert model.norm(model.body(X)).dtype == jnp.float32
        assert model.head(jnp.ones((3, 8))).dtype == jnp.bfloat16
        assert model(X).dtype == jnp.float32


def test_pure_bfloat16_casts_parameters_and_slots():
    amp, model, optimizer = prepared("bfloat16", tx=optax.adam(0.01))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {"bfloat16"}
    for _ in range(2):
        loss = amp.backward(lambda: jnp.square(model(X)).mean(), optimizer)
        amp.step(optimizer)
    assert np.isfinite(float(loss))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {"bfloat16"}


def test_narrow_parameters_under_a_scaler():
    with pytest.raises(ua.ParamDtypeError, match=r"body\.bias"):
        prepared("mixed_bfloat16", Net(param_dtype=jnp.bfloat16), loss_scale=4.0)


def test_single_operations_are_refused_by_name():
    with pytest.raises(ua.UnsupportedError, match="softmax"):
        ua.Amp("jax", ua.Policy.parse("mixed_bfloat16").replace(op_overrides={"softmax": "float32"}))


def test_a_float16_policy_on_cpu_says_that_it_does_not_help():
    with pytest.warns(ua.PolicyWarning, match="float32"):
        ua.Amp("jax", "mixed_float16", device="cpu")
    with pytest.raises(ua.PolicyNotSupportedError):
        ua.Amp("jax", "mixed_float16", device="cpu", strict=True)


def test_close_gives_the_layers_back():
    own = Net()
    kind, promote = type(own), own.body.promote_dtype
    amp, model, _ = prepared("mixed_bfloat16", own)
    assert isinstance(model, kind)
    assert type(model) is not kind
    amp.close()
    assert type(model) is kind
    assert model.body.promote_dtype is promote


def test_custom_functions_cast_and_step_out_of_the_region():
    @ua.amp_function(cast_inputs="float32")
    def inner(x):
        (product,) = promote_dtype((x,))
        return product

    amp, _, _ = prepared("mixed_bfloat16")
    narrow = X.astype(jnp.bfloat16)
    assert inner(narrow).dtype == jnp.bfloat16
    with amp.autocast():
        assert inner(narrow).dtype == jnp.float32
        assert promote_dtype((X,))[0].dtype == jnp.bfloat16


@pytest.mark.parametrize("compiled", [False, True])
def test_factors_that_are_no_float32_round_as_the_reference_does(compiled):
    settings = ua.DynamicLossScale(initial_scale=3.3, growth_factor=1.1, backoff_factor=0.7, growth_interval=1)
    amp, model, optimizer = prepared(loss_scale=settings)

    def step(x):
        amp.backward(lambda: jnp.square(model(x)).mean(), optimizer)
        amp.step(optimizer)

    step = amp.compile(step) if compiled else step
    expected = settings.initial_state()
    for i in range(12):
        step(X * (np.inf if i % 5 == 2 else 1.0))
        expected = settings.next_state(expected, i % 5 == 2)
        assert amp.loss_scale == expected.scale


def test_a_layer_shared_by_two_models():
    class Tied(nnx.Module):
        def __init__(self, shared):
            self.shared = shared

        def __call__(self, x):
            return self.shared(x)

    shared = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    one, two = Tied(shared), Tied(shared)
    amp = ua.Amp("jax", "float32")
    one, two, optimizer = amp.prepare(one, two, Optimizer(nnx.List([one, two]), optax.sgd(0.1)))
    assert one.shared is two.shared
    amp.backward(lambda: one(X).sum() + two(X).sum(), optimizer)
    (grad,) = [value for name, value in amp.gradients(optimizer).items() if name.endswith("bias")]
    np.testing.assert_array_equal(grad, np.full(4, 6.0, np.float32))


def test_the_package_imports_no_jax_until_it_is_used():
    import subprocess
    import sys

    code = "import sys, unifiedamp as ua; ua.available_backends(); import unifiedamp_jax; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["loss_scale", "applied_steps", "skipped_steps"])
def test_numbers_are_not_read_while_a_step_is_traced(name):
    amp, model, optimizer = prepared(loss_scale=DYNAMIC)

    @amp.compile
    def train(x):
        amp.backward(lambda: model(x).sum(), optimizer)
        amp.step(optimizer)
        return getattr(amp, name)

    with pytest.raises(ua.StepOrderError, match="inside a compiled step nothing has run yet"):
        train(X)
    amp.backward(lambda: model(X).sum(), optimizer)
    assert amp.step(optimizer).applied
