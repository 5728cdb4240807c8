"""One recording of two gloo processes: which rank overflowed first, in which layer, and whether the sum made it."""

import math
import warnings

import torch
from loops import session
from ranks import checked, run_ranks

import unifiedamp as ua
from unifiedamp.recording.advice import findings
from unifiedamp.recording.page import to_dict
from unifiedamp.recording.reading import read_recording


class Scaled(torch.nn.Linear):
    """A linear layer whose output, and whose weight's gradient, can be multiplied."""

    forward_factor = backward_factor = 1.0

    def forward(self, x):
        weight = self.weight * 1.0
        if self.backward_factor != 1.0:
            weight.register_hook(lambda gradient: gradient * self.backward_factor)
        return torch.nn.functional.linear(x, weight, self.bias) * self.forward_factor


def run(rank, folder, wrap, fault, reduce_dtype=None):
    amp = session(loss_scale=ua.DynamicLossScale(initial_scale=1.0), reduce_dtype=reduce_dtype)
    torch.manual_seed(0)
    model = torch.nn.Sequential(Scaled(4, 4), Scaled(4, 4))
    inner = list(model)
    if wrap == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        torch.distributed.fsdp.fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    model, optimizer = amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    x = torch.full((2, 4), 1.0 + rank)
    with amp.record(f"{folder}/run.jsonl", every=1):
        for index in range(3):
            if index == 1 and (rank in fault[1]):
                setattr(inner[fault[2]], fault[0], fault[3])
            amp.backward(lambda: model(x).square().mean(), optimizer)
            amp.step(optimizer)
            for each in inner:
                each.forward_factor = each.backward_factor = 1.0
    return amp.skipped_steps


FORWARD = ("forward_factor", (1,), 0, math.inf)
BACKWARD = ("backward_factor", (1,), 1, math.nan)
SUMMED = ("backward_factor", (0, 1), 1, 1e6)
CASES = {
    "forward": ("ddp", FORWARD, None),
    "backward": ("ddp", BACKWARD, None),
    "shard": ("shard", BACKWARD, None),
    "summed": ("ddp", SUMMED, "float16"),
}


def every_case(rank, folder):
    for name, case in CASES.items():
        assert run(rank, f"{folder}/{name}", *case) == 1, name
    return alone(rank)


def alone(rank):
    """Rank 1 records, and rank 0 does not; return what it is told."""
    model = torch.nn.Linear(2, 1)
    amp = session(loss_scale=1.0)
    amp.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    records = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if rank == 1:
            amp.record(records.append).stop()
    return [str(each.message) for each in caught], records


def test_one_recording_of_all_ranks(tmp_path):
    (_, ((told,), written)) = checked(run_ranks(every_case, str(tmp_path)))
    assert "rank 0, which writes the records of all ranks, records nothing" in told
    assert written == []
    found = {}
    for name in CASES:
        recording = read_recording(tmp_path / name / "run.jsonl")
        assert [step["step"] for step in recording.steps] == [1, 2, 3]
        assert [step["applied"] for step in recording.steps] == [True, False, True], name
        assert [record["missing"] for record in recording.ranks] == [[], [], []]
        good, bad, again = [record["first"] for record in recording.ranks]
        assert good is None
        assert again is None
        found[name] = bad, findings(recording)[0].text, recording
    first, text, _ = found["forward"]
    assert first == {"during": "forward", "ranks": [1], "name": "module.0"}
    assert "`module.0` overflowed in 1 of 1 skipped step: inf or nan first appeared in the output of" in text
    assert "It was first on rank 1 of 2 ranks." in text
    first, text, _ = found["backward"]
    assert first == {"during": "backward", "ranks": [1], "name": "module.1.weight"}
    assert "the gradient of `module.1.weight` was the first" in text
    first, text, recording = found["shard"]
    assert first == {"during": "backward", "ranks": [1], "name": "1.weight"}
    sizes = {name: each["true"]["values"] for name, each in to_dict(recording)["gradients"].items()}
    assert sizes == {"0.weight": 48, "0.bias": 12, "1.weight": 48, "1.bias": 12}  # of both shards, in three steps
    first, text, _ = found["summed"]
    assert first["during"] == "reduction"
    assert "though every rank's own gradients were" in text
