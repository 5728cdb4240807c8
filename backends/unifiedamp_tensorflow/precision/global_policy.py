"""Keras's global dtype policy, set for a while and put back as it was found.

Keras 3 keeps one per thread. Keras 2 keeps one for the process, so there one thread at a time is inside a scope.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from unifiedamp.backend import errors

from .rewrite import active_switches

try:
    from keras.src.backend.common import global_state
except ImportError:  # Keras 2
    global_state = None
    from keras.src.mixed_precision import policy as keras2

WAIT = 60.0
"""Seconds that a thread waits under Keras 2 for another one to leave its scope."""

_turn = threading.RLock()
_ATTRIBUTE = "dtype_policy"


class PolicyScope:
    """Sets Keras's global dtype policy; puts the one found back, also when an exception passes.

    Args:
        name: of the policy.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: list[Any] = []

    def __enter__(self) -> None:
        switches = active_switches() if self._name.startswith("mixed_") else []
        if switches:
            raise errors.UnsupportedError(
                f"TensorFlow's graph rewrite is on ({', '.join(switches)}), and a mixed Keras policy cannot be had "
                "with it: turn it off by tf.config.optimizer.set_experimental_options, or use mode='graph_rewrite'"
            )
        _take_turn()
        self._found.append(_read())
        try:
            tf.keras.mixed_precision.set_global_policy(self._name)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            _write(self._found.pop())
        finally:
            _end_turn()


def _read() -> Any:
    """Return the policy that was set; None where none was, and Keras goes by ``floatx``."""
    return keras2._global_policy if global_state is None else global_state.get_global_attribute(_ATTRIBUTE)


def _write(policy: Any) -> None:
    if global_state is None:
        keras2.set_global_policy(policy)
    else:
        global_state.set_global_attribute(_ATTRIBUTE, policy)


def _take_turn() -> None:
    if global_state is None and not _turn.acquire(timeout=WAIT):
        raise errors.UnsupportedError(
            f"amp.scope: another thread has been inside amp.scope() for {WAIT:g} s, and Keras 2 has one dtype policy "
            "for the whole process; make models in one thread, or leave the scope before waiting for this one"
        )


def _end_turn() -> None:
    if global_state is None:
        _turn.release()
