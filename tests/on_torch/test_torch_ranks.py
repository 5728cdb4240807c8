"""Two gloo processes: inf on one rank, one decision on both."""

import multiprocessing
import socket
import traceback

import pytest


def rank_main(rank, port, fused, queue):
    try:
        import torch
        import torch.distributed as dist
        from loops import session

        import unifiedamp as ua
        from unifiedamp_torch import device

        if fused:
            device.looking_is_free = lambda _: False
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        amp = session(loss_scale=ua.DynamicLossScale(initial_scale=4.0))
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, fused=fused))
        applied = []
        for bad in (False, True, False):
            x = torch.full((1, 1), float("inf") if bad and rank == 0 else 1.0)
            amp.backward(lambda x=x: model(x).sum(), optimizer)
            applied.append(amp.step(optimizer).applied)
        queue.put((rank, applied, model.weight.item(), amp.loss_scale))
        dist.destroy_process_group()
    except BaseException:
        queue.put((rank, traceback.format_exc()))


@pytest.mark.parametrize("fused", [False, True])
def test_all_ranks_skip_when_one_overflows(fused):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unifiedamp_torch.backend"])
    queue = context.Queue()
    ranks = [context.Process(target=rank_main, args=(rank, port, fused, queue), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        answers = sorted(queue.get(timeout=120) for _ in ranks)
    finally:
        for process in ranks:
            process.join(20)
            if process.is_alive():
                process.terminate()
    wanted = ([True, False, True], pytest.approx(0.8), 2.0)
    assert answers == [(0, *wanted), (1, *wanted)]
