"""Keras's global dtype policy, set inside a context.

Keras 3 keeps one per thread. Keras 2 keeps one for the process, so there one thread at a time is inside a scope.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors

from .. import patches
from .rewrite_options import active_options

WAIT = 60.0
"""Seconds that a thread waits under Keras 2 for another one to leave its scope."""


class PolicyScope:
    """Sets Keras's global dtype policy; restores the previous one on exit, also when an exception passes.

    Args:
        name: of the policy.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: list[Any] = []

    def __enter__(self) -> None:
        options = active_options() if self._name.startswith("mixed_") else []
        if options:
            raise errors.UnsupportedError(
                f"TensorFlow's graph rewrite is on ({', '.join(options)}), which excludes mixed Keras policies: "
                "turn it off by tf.config.optimizer.set_experimental_options, or use mode='graph_rewrite'"
            )
        _acquire()
        self._found.append(patches.read_global_policy())
        try:
            tf.keras.mixed_precision.set_global_policy(self._name)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            patches.write_global_policy(self._found.pop())
        finally:
            if not patches.GLOBAL_POLICY_PER_THREAD:
                patches.POLICY_LOCK.release()


def _acquire() -> None:
    if not patches.GLOBAL_POLICY_PER_THREAD and not patches.POLICY_LOCK.acquire(timeout=WAIT):
        raise errors.UnsupportedError(
            f"amp.scope: another thread has been inside amp.scope() for {WAIT:g} s, and Keras 2 has one dtype policy "
            "for the whole process; make models in one thread, or leave the scope before waiting for this one"
        )


def refuse_mixed_policy() -> None:
    """Refuse a mixed Keras policy that is active, for the graph rewrite.

    Raises:
        PrepareError: one is.
    """
    policy = tf.keras.mixed_precision.global_policy().name
    if policy.startswith("mixed_"):
        raise errors.PrepareError(
            f"the Keras policy {policy!r} is active, and the graph rewrite needs float32 layers: reset it by "
            "tf.keras.mixed_precision.set_global_policy('float32'), or use mode='keras'"
        )
