"""``amp.scope()`` and Keras's global dtype policy: put back as found, and no mixing of threads."""

import random
import threading

import pytest

import unifiedamp as ua

tf = pytest.importorskip("tensorflow")
from models import SCALES_LOSS, keras, mlp  # noqa: E402

from unifiedamp_tensorflow import patches  # noqa: E402
from unifiedamp_tensorflow.precision import global_policy  # noqa: E402

mixed_precision = keras.mixed_precision
needs_keras2 = pytest.mark.skipif(SCALES_LOSS, reason="Keras 3 keeps a global policy for each thread")


@pytest.fixture(autouse=True)
def _as_found():
    found = patches.read_global_policy()
    yield
    patches.write_global_policy(found)


@pytest.mark.parametrize("failing", [False, True])
def test_the_very_object_comes_back(failing):
    own = mixed_precision.Policy("mixed_float16") if hasattr(mixed_precision, "Policy") else None
    mixed_precision.set_global_policy(own or "mixed_float16")
    found = mixed_precision.global_policy()
    amp = ua.Amp("tensorflow", "mixed_bfloat16")
    try:
        with amp.scope(), amp.scope():
            assert mixed_precision.global_policy().name == "mixed_bfloat16"
            if failing:
                raise KeyError
    except KeyError:
        assert failing
    assert mixed_precision.global_policy() is found


def test_where_none_was_set_floatx_still_decides():
    patches.write_global_policy(None)
    with ua.Amp("tensorflow", "mixed_bfloat16").scope():
        pass
    keras.backend.set_floatx("float64")
    try:
        assert mixed_precision.global_policy().name == "float64"
    finally:
        keras.backend.set_floatx("float32")
        patches.write_global_policy(None)


def test_two_threads_make_models_under_two_policies():
    policies = ["mixed_bfloat16", "mixed_float16"]
    sessions = [ua.Amp("tensorflow", policy, loss_scale=8.0) for policy in policies]
    found, made, start = mixed_precision.global_policy().name, {}, threading.Barrier(2)

    def make(amp, policy):
        start.wait(60)
        for _ in range(20):
            with amp.scope():
                made.setdefault(policy, set()).add(mlp().get_layer("hidden").dtype_policy.name)

    threads = [threading.Thread(target=make, args=pair) for pair in zip(sessions, policies, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert made == {policy: {policy} for policy in policies}
    assert mixed_precision.global_policy().name == found


@needs_keras2
def test_a_thread_that_waits_in_vain_is_told(monkeypatch):
    monkeypatch.setattr(global_policy, "WAIT", 0.05)
    amp, told = ua.Amp("tensorflow", "mixed_bfloat16"), []

    def enter():
        try:
            with amp.scope():
                pass
        except ua.UnsupportedError as error:
            told.append(str(error))

    with amp.scope():
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(60)
    assert len(told) == 1
    assert "another thread has been inside amp.scope()" in told[0]
    with amp.scope():
        assert mixed_precision.global_policy().name == "mixed_bfloat16"


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "bfloat16"])
@pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning")
def test_a_seed_gives_the_weights_that_it_gives_natively(policy):
    amp = ua.Amp("tensorflow", policy)
    random.seed(3)  # keras.utils.set_random_seed would leave Keras 2 warning ever after
    with amp.scope():
        ours = mlp().get_weights()
    random.seed(3)
    mixed_precision.set_global_policy(policy)
    native = mlp().get_weights()
    assert all((one == other).all() for one, other in zip(ours, native, strict=True))
