"""What counts mean, where blame falls, what is advised: plain values, no framework."""

import json
import math
import struct

import pytest

import unifiedamp as ua
from unifiedamp.backend.recording import BUCKETS, EDGE_BITS, Activation
from unifiedamp.recording.advice import advised_exponent, findings
from unifiedamp.recording.counts import Distribution
from unifiedamp.recording.nonfinite_origin import first_activation, first_gradient, run_order
from unifiedamp.recording.reading import collect, read_recording
from unifiedamp.recording.sinks import JsonLines, number, open_sink


def counted(*values):
    """Counts by the definition: how many edges are not above the value's bits."""
    counts = [0] * BUCKETS
    for value in values:
        (bits,) = struct.unpack("I", struct.pack("f", abs(value)))
        counts[sum(edge <= bits for edge in EDGE_BITS)] += 1
    return Distribution.of(counts)


# -- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "exponent"),
    [(1.0, 0), (1.99, 0), (2.0, 1), (0.5, -1), (2.0**-126, -126), (3.4e38, 127), (65504.0, 15), (65505.0, 15),
     (65535.0, 15), (65536.0, 16)],
)  # fmt: skip
def test_exponents(value, exponent):
    assert counted(value, -value).exponents == {exponent: 2}


def test_kinds_of_values():
    told = counted(
        0.0, -0.0, math.inf, -math.inf, math.nan, 65504.0, 65505.0, 1e38, 2.0**-25, 2.0**-24, 2.0**-15, 1e-45
    )
    assert (told.zero, told.inf, told.nan, told.overflow) == (2, 2, 1, 2)
    assert (told.flushed, told.subnormal, told.there) == (2, 2, 7)
    assert told.share(told.flushed) == pytest.approx(2 / 7)
    assert counted(0.0).share(0) is None


def test_distributions_survive_json_and_add_up():
    one, two = counted(1.0, 0.0, 1e-9), counted(1.0, math.nan, 1e5)
    assert Distribution.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert one.plus(two) == counted(1.0, 0.0, 1e-9, 1.0, math.nan, 1e5)


# -- blame ------------------------------------------------------------------------------------------------------------


def ran(*rows):
    return [Activation(layer, "Kind", place, "float16", largest) for layer, place, largest in rows]


def test_the_first_output_that_is_not_finite():
    seen = ran(("", "input", 1.0), ("a", "output", 2.0), ("b", "output", math.inf), ("c", "output", math.nan))
    assert first_activation(seen) == {"layer": "b", "kind": "Kind", "place": "output", "before": "", "after": "a"}
    assert first_activation(seen[:2]) is None


def test_an_operation_between_layers_belongs_to_the_layer_that_runs_it():
    seen = ran(("", "input", 1.0), ("block.fc", "output", 2.0), ("block.out", "input", math.inf))
    told = first_activation(seen)
    assert (told["layer"], told["place"], told["after"], told["before"]) == ("block", "inside", "block.fc", "block.out")


def test_the_gradient_of_the_layer_that_ran_last_was_first():
    order = run_order(["b.weight", "a.weight", "loose", "b.bias"], ["a", "b"])
    assert order == ["loose", "a.weight", "b.weight", "b.bias"]
    assert first_gradient(["a.weight", "b.weight"], order) == "b.weight"
    assert first_gradient([], order) is None


# -- advice -----------------------------------------------------------------------------------------------------------


def header(**changes):
    return {
        "kind": "header", "format": "unifiedamp-recording", "version": 1, "time": 0.0, "unifiedamp": "0", "every": 1,
        "backend": "toy", "framework": "numpy", "framework_version": "1", "device": "cpu", "policy": "mixed_float16",
        "epsilons": [], **changes,
    }  # fmt: skip


def step(number, gradients=(), scale=1.0, activations=(), non_finite=None):
    return {
        "kind": "step", "step": number, "reason": "every", "time": 0.0, "scale": scale, "next_scale": scale,
        "loss": 1.0,
        "applied": non_finite is None, "applied_steps": number, "skipped_steps": 0,
        "gradients": {
            name: {"true": counted(*values).to_json(), "scaled": counted(*(v * scale for v in values)).to_json()}
            for name, values in dict(gradients).items()
        },
        "activations": [
            {"layer": layer, "kind": "Linear", "place": "output", "dtype": "float16", "largest": largest}
            for layer, largest in dict(activations).items()
        ],
        "non_finite": non_finite,
    }  # fmt: skip


def bad(layer=None, gradient=None, place="output"):
    first = None if layer is None else {"layer": layer, "kind": "LayerNorm", "place": place, "before": "", "after": ""}
    return {"loss_was_finite": layer is None, "first_activation": first, "first_gradient": gradient, "gradients": []}


def advice(*records, **changes):
    return findings(collect(json.dumps(record) for record in [header(**changes), *records]))


def test_a_layer_that_overflows_most_often_comes_first():
    records = [step(n, non_finite=bad("decoder.norm")) for n in range(4)] + [step(9, non_finite=bad("head"))]
    skip = {"kind": "skip", "step": 10, "since": 9, "count": 1, "exact": True, "next_scale": 1.0, "skipped_steps": 6}
    first, second = advice(*records, {**skip, "non_finite": bad()})
    assert first.name == "decoder.norm"
    assert "`decoder.norm` overflowed in 4 of 6 skipped steps" in first.text
    assert 'layer_overrides = {"decoder.norm" = "float32"}' in first.text
    assert second.name == "head"


@pytest.mark.parametrize(("count", "said"), [(1, "One now and then is how"), (2, "A loss scale that starts lower")])
def test_what_is_said_of_skipped_steps_depends_on_their_number(count, said):
    (found,) = advice(*(step(n, non_finite=bad(gradient="head.weight")) for n in range(count)))
    assert f"in {count} of {count} skipped step" in found.text
    assert said in found.text


@pytest.mark.parametrize(
    ("size", "ranks", "said"),
    [(3, [], ""), (3, [1], " It was first on rank 1 of 3 ranks."),
     (3, [0, 2], " It was first on ranks 0, 2 of 3 ranks."),
     (3, [0, 1, 2], " It was first on all 3 ranks alike."), (2, [1], " It was first on rank 1 of 2 ranks."),
     (1, [0], "")],
)  # fmt: skip
def test_ranks_are_named_where_they_are_known(size, ranks, said):
    first = {"during": "backward", "ranks": ranks, "name": "head.weight"} if ranks else None
    merged = {"kind": "ranks", "step": 1, "count": size, "missing": [], "first": first, "bad": []}
    (found,) = advice(step(1, non_finite=bad(gradient="head.weight")), merged)
    assert found.text.partition("finds its height.")[2] == said


def test_a_mask_that_is_infinite_on_good_steps_is_not_to_blame():
    good = step(1, activations={"mask": "-inf", "head": 1.0})
    (found,) = advice(good, step(2, non_finite=bad("mask", gradient="head.weight")))
    assert found.name == "head.weight"


def test_a_flushed_gradient_gets_the_scale_that_saves_it():
    (found,) = advice(step(1, {"head.weight": [2.0**-30] * 93 + [1.0] * 7}))
    assert found.kind == "underflow"
    assert "`head.weight`: 93% of its values are below 2**-24 at loss scale 1" in found.text
    # 1 times 2**14 is a factor of two below 2**15 and so below 65504.
    assert "raise the initial scale to 2**14 (then 0%)" in found.text
    assert advised_exponent({"a": counted(1.0)}) == 14
    assert advised_exponent({"a": counted(2.0**-60)}) == 24


def test_a_gradient_that_no_scale_saves_is_kept_in_float32():
    (found,) = advice(step(1, {"tiny.gain": [2.0**-80], "head.weight": [1000.0]}))
    assert "leaves 100%" in found.text
    assert 'layer_overrides = {"tiny" = "float32"}' in found.text


@pytest.mark.parametrize(
    ("value", "dtype", "said"),
    [
        (1e-8, "float16", "is 0 in float16"),
        (1e-5, "float16", "below float16's normal numbers"),
        (1e-8, "bfloat16", "would be 0 in float16"),
        (1e-3, "float16", None),
        (1e-8, "float32", None),
        (1e-5, "bfloat16", None),
    ],
)
def test_epsilons(value, dtype, said):
    found = advice(epsilons=[{"layer": "norm", "attribute": "eps", "value": value, "dtype": dtype}])
    assert [each.name for each in found] == (["norm"] if said else [])
    assert said is None or said in found[0].text


def test_large_activations_are_named_at_the_innermost_layer():
    (found,) = advice(step(1, activations={"block.fc": 1e5, "block": 1e5, "small": 3.0, "": 1e5}))
    assert found.name == "block.fc"
    assert "1e+05" in found.text


def test_nothing_to_say():
    assert advice(step(1, {"w": [1.0, 0.0]}, activations={"a": 10.0})) == []


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_though_its_last_line_was_cut_off(tmp_path):
    path = tmp_path / "run.jsonl"
    first = JsonLines(path)
    first.write(header())
    first.write(step(1, {"w": [1.0]}))
    first.close()
    whole = path.read_bytes()
    for cut in range(1, 60, 7):
        path.write_bytes(whole[:-cut])
        found = read_recording(path)
        assert (len(found.headers), len(found.steps), found.damaged) == (1, int(cut == 1), int(cut > 1))


def test_a_resumed_run_goes_on_below_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps(header()) + "\n" + '{"kind": "step", "st')
    again = JsonLines(path)
    again.write(header(first_step=2))
    again.write(step(2))
    again.close()
    found = read_recording(path)
    assert (len(found.headers), [record["step"] for record in found.steps], found.damaged) == (2, [2], 1)
    assert found.header["first_step"] == 2


def test_what_is_no_recording_is_told(tmp_path):
    path = tmp_path / "other.jsonl"
    with pytest.raises(ua.ConfigError, match="No such file"):
        read_recording(path)
    path.write_text('{"kind": "something"}\n[1]\nhello\n')
    with pytest.raises(ua.ConfigError, match="no header line"):
        read_recording(path)
    path.write_text(json.dumps(header(version=2)) + "\n")
    with pytest.raises(ua.ConfigError, match="newer unifiedamp"):
        read_recording(path)


def test_sinks():
    seen = []
    sink = open_sink(seen.append)
    sink.write({"kind": "header"})
    sink.close()
    assert seen == [{"kind": "header"}]
    assert (number(None), number(1.5), number(math.inf), number(math.nan)) == (None, 1.5, "inf", "nan")


def test_a_backend_that_does_not_record_is_refused_by_name():
    with pytest.raises(ua.UnsupportedError, match="backend 'toy' cannot record: a toy is looked at by hand"):
        ua.Amp("toy").record("run.jsonl")
