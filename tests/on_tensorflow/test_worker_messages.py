"""Messages of workers: the first one holds what they share, and may end before the others."""

import pytest
import tensorflow as tf

from unifiedamp_tensorflow.distributed.messages import WorkerMessages


class Values:
    """What workers share, in one process; after ``end`` every call fails as it does without the first worker."""

    def __init__(self):
        self._values, self._ended = {}, None

    def end(self, error):
        self._ended = error

    def set_config_key_value(self, key, value):
        self._values[key] = value

    def get_config_key_value(self, key, _milliseconds):
        if self._ended is not None:
            raise self._ended(None, None, "Connection reset by peer")
        if key not in self._values:
            raise tf.errors.DeadlineExceededError(None, None, "no such key")
        return self._values[key]


@pytest.mark.parametrize("error", [tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError])
def test_a_first_worker_that_has_ended_is_no_error(error):
    values = Values()
    first, second = (WorkerMessages(rank, 2, values) for rank in (0, 1))
    second._prefix = first._prefix  # each process counts its own recordings
    values.end(error)
    assert second.received()


def test_a_first_worker_that_records_nothing_is_known():
    assert not WorkerMessages(1, 2, Values()).received()
