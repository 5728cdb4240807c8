"""``unifiedamp report`` on files of somebody else's making: a report, or one line and exit code 2; nothing else."""

import copy
import json
import re

import pytest
from effort import FUZZ
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import deep, mutated
from page_checks import checked
from typer.testing import CliRunner

from unifiedamp.cli import app
from unifiedamp.errors import ConfigError
from unifiedamp.recording import page as pages
from unifiedamp.recording import reading
from unifiedamp.recording.counts import Distribution
from unifiedamp.recording.reading import read_recording

FAST = settings(
    max_examples=FUZZ, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip

HEADER = {
    "kind": "header", "format": "unifiedamp-recording", "version": 1, "time": 1.0, "unifiedamp": "0.1", "every": 2,
    "backend": "torch", "framework": "torch", "framework_version": "2.13", "device": "cpu", "policy": "mixed_float16",
    "compute_dtype": "float16", "loss_scale": "dynamic", "scale": 8.0, "accumulate_steps": 1, "first_step": 1,
    "epsilons": [{"layer": "norm", "attribute": "eps", "value": 1e-8, "dtype": "float16"}],
}  # fmt: skip


def distribution(exponents, **counts):
    return Distribution(counts.get("zero", 0), counts.get("inf", 0), 0, 0, exponents).to_json()


def step(number, **changes):
    gradient = {"scaled": distribution({-30: 3, 0: 1}), "true": distribution({-33: 3, -3: 1})}
    bad = {"scaled": distribution({16: 1}, inf=2), "true": distribution({13: 1}, inf=2)}
    row = {"kind": "Linear", "dtype": "float16"}
    return {
        "kind": "step", "step": number, "reason": "every", "time": 2.0, "scale": 8.0, "next_scale": 4.0, "loss": "nan",
        "applied": False, "applied_steps": number - 1, "skipped_steps": 1,
        "gradients": {"a.weight": gradient, "b.weight": bad},
        "activations": [
            {"layer": "", "place": "input", "largest": 1.5, **row},
            {"layer": "a", "place": "output", "largest": 70000.0, **row},
            {"layer": "b", "place": "output", "largest": "inf", **row},
        ],
        "non_finite": {
            "loss_was_finite": False, "gradients": ["b.weight"], "first_gradient": None,
            "first_activation": {"layer": "b", "kind": "Linear", "place": "inside", "before": "b.c", "after": "a"},
        },
        **changes,
    }  # fmt: skip


def skip(number):
    return {
        "kind": "skip", "step": number, "since": number - 2, "count": 1, "exact": False, "next_scale": 2.0,
        "skipped_steps": 2,
        "non_finite": {
            "loss_was_finite": True, "first_activation": None, "first_gradient": "a.weight", "gradients": ["a.weight"],
        },
    }  # fmt: skip


RECORDS = [HEADER, step(1), skip(4), step(5, applied=True, loss=0.5, non_finite=None)]


def text_of(records):
    return "\n".join(json.dumps(record).replace('"__deep__"', deep()) for record in records) + "\n"


def report(path, *arguments):
    done = CliRunner().invoke(app, ["report", str(path), *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code in (0, 2)
    if done.exit_code == 2:
        assert re.fullmatch(r"unifiedamp: [^\n]+\n", done.stderr), done.stderr
    return done


def examined(path):
    """Read a file and say all that there is to say of it, as the command does; or be refused by an error of ours."""
    try:
        recording = read_recording(path)
    except ConfigError:
        return
    json.dumps(pages.to_dict(recording), allow_nan=False)
    assert pages.title(recording)
    assert pages.about(recording)


def written(tmp_path, text):
    path = tmp_path / "run.jsonl"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path


def test_the_file_that_is_mutated_is_valid(tmp_path):
    path = written(tmp_path, text_of(RECORDS))
    assert report(path).exit_code == 0
    assert report(path, "--html", tmp_path / "page.html").exit_code == 0


@FAST
@given(records=mutated(RECORDS))
def test_changed_values_are_read_or_refused(tmp_path, records):
    examined(written(tmp_path, text_of(records if isinstance(records, list) else [records])))


@settings(FAST, max_examples=max(5, FUZZ // 50))
@given(records=mutated(RECORDS))
def test_what_is_read_can_be_drawn_and_what_is_refused_is_one_line(tmp_path, records):
    path = written(tmp_path, text_of(records if isinstance(records, list) else [records]))
    if report(path, "--html", tmp_path / "page.html").exit_code == 0:
        assert "No plots" not in checked((tmp_path / "page.html").read_text(encoding="utf-8")).words


@FAST
@given(st.data())
def test_changed_bytes_are_read_or_refused(tmp_path, data):
    content = bytearray(text_of(RECORDS).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    examined(path)


def changed(path, value):
    """Return the lines with one value replaced, the path beginning with the number of the line."""
    records = copy.deepcopy(RECORDS)
    inside = records
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return text_of(records)


COUNTS = (1, "gradients", "a.weight", "scaled")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((1, "scale"), 0.0, "line 2: scale"),
        ((1, "scale"), "8", "line 2: scale"),
        ((1, "scale"), 1e39, "line 2: scale"),
        ((1, "step"), -1, "line 2: step"),
        ((1, "step"), True, "line 2: step"),
        ((1, "gradients"), [], "line 2: gradients"),
        ((*COUNTS, "zero"), -1, "line 2: gradients.a.weight.scaled.zero"),
        ((*COUNTS, "zero"), 10**100, "line 2: gradients.a.weight.scaled.zero"),
        ((*COUNTS, "exponents"), {"999999999": 1}, "whole numbers from -127 to 127"),
        ((*COUNTS, "exponents"), {"+1": 1}, "whole numbers from -127 to 127"),
        ((1, "activations", 0, "largest"), "huge", "line 2: activations.0.largest"),
        ((1, "non_finite", "first_activation"), {}, "line 2: non_finite.first_activation"),
        ((2, "count"), 0, "line 3: count"),
        ((0, "epsilons", 0, "value"), None, "line 1: epsilons.0.value"),
        ((0, "policy"), 3, "line 1: policy"),
        ((0, "version"), "1", "line 1: version"),
        ((0, "version"), 7, "newer unifiedamp"),
        ((0, "format"), "another", "is no recording"),
        ((0, "kind"), "heading", "is no recording"),
        ((1, "loss"), "__deep__", "nested too deeply"),
    ],
)
def test_a_refusal_names_the_line_and_the_field(tmp_path, path, value, said):
    done = report(written(tmp_path, changed(path, value)))
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_key_twice_is_refused(tmp_path):
    text = text_of(RECORDS).replace('"scale": 8.0, "next_scale"', '"scale": 8.0, "scale": 16.0, "next_scale"')
    done = report(written(tmp_path, text))
    assert done.exit_code == 2
    assert "line 2: the name 'scale' stands twice" in done.stderr


def test_numbers_that_json_does_not_have_are_no_record(tmp_path):
    done = report(written(tmp_path, changed((1, "loss"), float("nan"))))
    assert done.exit_code == 0
    assert "1 lines could not be read" in done.stdout


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        ("MAX_BYTES", 100, "a file may have 100 bytes"),
        ("MAX_LINE", 100, "a line may have 100 bytes"),
        ("MAX_RECORDS", 2, "more than 2 records"),
        ("MAX_NAMES", 2, "more than 2 names of layers"),
    ],
)
def test_sizes_are_bounded(tmp_path, monkeypatch, limit, value, said):
    monkeypatch.setattr(reading, limit, value)
    done = report(written(tmp_path, text_of(RECORDS)))
    assert done.exit_code == 2
    assert said in done.stderr


def test_many_names_take_time_by_their_number_alone(tmp_path):
    """Each of 3,000 steps with another gradient and layer; by the square this would take minutes."""
    row = {"kind": "Linear", "dtype": "float16", "place": "output", "largest": 1e5}
    gradient = {form: distribution({-30: 1}) for form in ("scaled", "true")}
    records = [
        step(n, gradients={f"w{n}": gradient}, activations=[{"layer": f"l{n}", **row}], applied=True, non_finite=None)
        for n in range(1, 3000)
    ]
    assert report(written(tmp_path, text_of([HEADER, *records])), "--json").exit_code == 0


def test_the_recording_is_not_written_over(tmp_path):
    path = written(tmp_path, text_of(RECORDS))
    done = report(path, "--html", path)
    assert done.exit_code == 2
    assert "is the recording itself" in done.stderr
    assert path.read_text() == text_of(RECORDS)


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path):
    path = written(tmp_path, text_of(RECORDS))
    (tmp_path / "pictures" / "scale.png").mkdir(parents=True)
    done = report(path, "--png", tmp_path / "pictures")
    assert done.exit_code == 2
    assert "--png" in done.stderr


HOSTILE = "</td><script>alert(1)</script>\x1b[2J\u202e\u2066$\\frac{\x07"
"""Markup, control characters, marks of direction, and a formula that does not end."""


def hostile_records():
    text = text_of(RECORDS)
    for known in ("a.weight", "torch", "2.13", "cpu", "mixed_float16", "Linear", "b.c", "0.1", "norm", "eps"):
        text = text.replace(f'"{known}"', json.dumps(f"{known}{HOSTILE}"))
    return text.replace('"layer": "a"', f'"layer": {json.dumps("a" + HOSTILE)}')


def test_names_are_shown_and_never_obeyed_by_the_page(tmp_path):
    path, page = written(tmp_path, hostile_records()), tmp_path / "page.html"
    assert report(path, "--html", page).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "a.weight&lt;/td&gt;&lt;script&gt;" in text
    assert r"\x1b[2J\u202e\u2066" in text
    assert not set(text) & set("\x1b\u202e\u2066\x07")
    assert "a.weight</td><script>alert(1)" in checked(text).drawings[2]


def test_long_names_leave_room_for_the_pictures(tmp_path):
    path = written(tmp_path, text_of(RECORDS).replace("a.weight", "block." * 80 + "weight"))
    assert report(path, "--png", tmp_path / "pictures").exit_code == 0
