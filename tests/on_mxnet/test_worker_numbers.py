"""Numbers that workers of a distributed kvstore exchange: each call has its own answer, however late a worker is."""

import time

from unifiedamp_mxnet.conformance.cluster import workers


def exchange(_index, _count):
    """Send before the answers to the calls before were read, on one worker later than on the other."""
    from unifiedamp_mxnet.distributed.shared_kvstore import native_kvstore
    from unifiedamp_mxnet.distributed.workers import WorkerNumbers

    numbers, rank = WorkerNumbers(), native_kvstore().rank
    yield numbers.gather([0.0]).tolist()
    sent = []
    for call in range(3):
        time.sleep(0.3 * rank)
        sent.append(numbers.send([10.0 * call + rank]))
    yield [numbers.read(each)[:, 0].tolist() for each in sent]


def test_an_answer_is_that_of_its_call():
    for _, found in workers(2).run(exchange):
        assert found == [[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]]
