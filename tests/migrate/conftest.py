"""What migrated programs leave behind in the process, and is put back."""

import sys

import pytest


@pytest.fixture
def policy_put_back():
    """Keras's global policy."""
    import tensorflow as tf

    found = tf.keras.mixed_precision.global_policy()
    yield
    tf.keras.mixed_precision.set_global_policy(found)


@pytest.fixture
def engine_forgotten():
    """The module ``engine`` of a listing, which its caller imports."""
    sys.modules.pop("engine", None)
    yield
    sys.modules.pop("engine", None)
