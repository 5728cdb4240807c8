"""How ``unifiedamp compare`` puts runs together, with stand-ins for them: failures, searches, combinations."""

from __future__ import annotations

import pytest
from command_runs import CONV


def rows_of(done):
    return {row["policy"]: row for row in done.json["rows"]}


def test_each_failure_costs_its_own_row(command, fake):
    done = command("compare", CONV, "--rounds", 2, "--json", "--policies",
                   "float32,mixed_bfloat16,bfloat16,float16", "--policies", "mixed_float16;ops=exp:float32",
                   "--policies", "mixed_float16;layers=x:float32")  # fmt: skip
    rows = rows_of(done)
    assert done.code == 1
    assert rows["float32"]["state"] == rows["mixed_bfloat16"]["state"] == "done"
    assert rows["bfloat16"]["state"] == "failed"
    assert "SIGKILL" in rows["bfloat16"]["reason"]
    assert (rows["float16"]["state"], rows["float16"]["reason"]) == ("refused", "no float16 here")
    exhausted, memory = (row for name, row in rows.items() if name.startswith("mixed_float16;"))
    assert (exhausted["state"], exhausted["reason"]) == ("failed", "exhausted")
    assert (memory["state"], memory["reason"]) == ("failed", "out of memory")
    assert rows["mixed_bfloat16"]["ratio"] == pytest.approx(2.0)
    assert rows["mixed_bfloat16"]["samples_per_second"] == pytest.approx(200.0)
    assert rows["float32"]["notes"] == ["a note"]
    (said,) = done.json["advice"]
    assert said.endswith("mixed_bfloat16: 2.0x faster than float32, accuracy +1.0 points: use it")


def test_refused_rows_alone_are_no_failure_beside_finished_ones(command, fake):
    assert command("compare", CONV, "--policies", "float32,float16", "--rounds", 1).code == 0
    assert command("compare", CONV, "--policies", "float16", "--rounds", 1).code == 1


def test_the_largest_batch_size_is_found_also_over_crashes(command, fake):
    done = command("compare", CONV, "--policies", "float32,mixed_bfloat16,mixed_float16", "--rounds", 1,
                   "--find-batch-size", "--json")  # fmt: skip
    sizes = {name: row["batch_size"] for name, row in rows_of(done).items()}
    assert 100 - 8 < sizes["float32"] <= 100
    assert 200 - 8 < sizes["mixed_bfloat16"] <= 200
    assert sizes["mixed_float16"] == 1437, "as many as there are samples"
    done = command("compare", CONV, "--policies", "mixed_float16", "--rounds", 1, "--find-batch-size",
                   "--max-batch-size", 150, "--batch-sizes", "16,32", "--json")  # fmt: skip
    assert [row["batch_size"] for row in done.json["rows"]] == [16, 32, 150]


def test_every_combination_is_a_row(command, fake):
    done = command("compare", CONV, "--backends", "toy,other", "--policies", "float32,mixed_bfloat16",
                   "--compile", "off,max", "--batch-sizes", "8,16", "--rounds", 1, "--json")  # fmt: skip
    keys = [(r["backend"], r["compile"], r["batch_size"], r["policy"]) for r in done.json["rows"]]
    assert len(set(keys)) == 16
    assert len(done.json["advice"]) == 8
