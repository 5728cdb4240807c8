"""Valid configurations in which single values are changed: only our errors come out, whichever way they come in."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import tempfile
import warnings
from pathlib import Path

import pytest
from effort import FUZZ
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unifiedamp import Amp, AmpError, ConfigError
from unifiedamp.config.arguments import read_arguments, read_config
from unifiedamp.workloads.configuration import TrainTable, read_settings, read_source
from unifiedamp.workloads.definition.loading import define, make

LAYERS = st.dictionaries(st.sampled_from(["a", "b.*", "head.0"]), st.sampled_from(["float32", "bfloat16"]), max_size=2)
OPS = st.dictionaries(st.sampled_from(["softmax", "exp"]), st.sampled_from(["float32", "widest"]), max_size=2)
SCALES = st.one_of(
    st.sampled_from(["dynamic", "none", "static(scale=8.0)", 128, 2.5]),
    st.fixed_dictionaries(
        {"kind": st.just("dynamic")}, optional={"initial_scale": st.just(8.0), "growth_interval": st.just(3)}
    ),
)
POLICIES = st.one_of(
    st.sampled_from(["float32", "mixed_bfloat16", "O1", "p=float32,c=float16"]),
    st.fixed_dictionaries(
        {"name": st.just("mixed_float16")}, optional={"layer_overrides": LAYERS, "op_overrides": OPS}
    ),
)
AMP = st.fixed_dictionaries(
    {"backend": st.just("toy")},
    optional={
        "policy": POLICIES,
        "loss_scale": SCALES,
        "accumulate_steps": st.integers(1, 4),
        "device": st.just("cpu"),
        "strict": st.booleans(),
        "compile": st.sampled_from(["default", "max"]),
        "tuning": st.one_of(
            st.sampled_from(["off", "fast"]),
            st.fixed_dictionaries({}, optional={"tf32": st.booleans(), "checkpoint_layers": st.just(["a.*"])}),
        ),
        "backend_options": st.just({"toy": {}}),
    },
)
TRAIN = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.integers(1, 3),
        "steps": st.integers(1, 3),
        "clip_norm": st.just(1.0),
        "compile": st.booleans(),
    },
)
SETTINGS = st.fixed_dictionaries(
    {"model": st.just("mlp")},
    optional={
        "batch_size": st.just(64),
        "learning_rate": st.just(0.1),
        "momentum": st.just(0.9),
        "seed": st.just(3),
        "samples": st.none() | st.just(64),
        "data": st.just("digits"),
    },
)
CLASSIFIER = str(Path(__file__).parents[2] / "examples" / "image_classifier.py")
CONFIGS = st.fixed_dictionaries({"workload": st.just(CLASSIFIER), "amp": AMP, "settings": SETTINGS, "train": TRAIN})

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**9, 2**31, 2**63, -(2**63), 10**400, 0, -1])
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["", "\x00", "\x1b[2J", "\ud800", "x" * 5000, "dynamic(", "static(scale=1e999)", "a=;=,:"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(table, path=()):
    """Every place in a table, the inner ones included."""
    for key, value in table.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


@st.composite
def mutated(draw, whole=CONFIGS):
    """A configuration, one place of which is changed, removed, renamed or given something more."""
    table = copy.deepcopy(draw(whole))
    *path, key = draw(st.sampled_from(sorted(places(table))))
    inner = table
    for part in path:
        inner = inner[part]
    what = draw(st.sampled_from(["value", "value", "value", "remove", "rename", "more"]))
    if what == "value":
        inner[key] = draw(VALUES)
    elif what == "more":
        inner[draw(st.text(max_size=8))] = draw(VALUES)
    else:
        value = inner.pop(key)
        if what == "rename":
            inner[draw(st.text(max_size=8))] = value
    return table


def toml(value) -> str:
    """TOML of plain values, as inline tables; None is left out by the caller."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)} = {toml(each)}" for key, each in value.items() if each is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(each) for each in value if each is not None) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return _text(value) if isinstance(value, str) else str(value)


def _text(text: str) -> str:
    return json.dumps(text)


def only_our_errors(call) -> None:
    with contextlib.suppress(AmpError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()


def use(arguments) -> None:
    Amp.from_config(arguments).close()


def use_workload(path) -> None:
    chosen = read_settings(read_source(str(path)))
    make(define(chosen.workload), chosen.given, "toy")


relaxed = settings(max_examples=FUZZ, deadline=None, suppress_health_check=list(HealthCheck))


@relaxed
@given(mutated())
def test_mappings(table):
    only_our_errors(lambda: use(table.get("amp", table)))
    only_our_errors(lambda: use({"amp": table.get("amp")}))


@relaxed
@given(mutated(), st.sampled_from([".json", ".toml"]), st.booleans())
def test_files(table, suffix, of_workload):
    text = json.dumps(table) if suffix == ".json" else "\n".join(f"{_text(k)} = {toml(v)}" for k, v in table.items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"amp{suffix}"
        path.write_bytes(text.encode(errors="surrogatepass"))
        only_our_errors(lambda: use_workload(path) if of_workload else use(path))


@relaxed
@given(
    st.sampled_from(["UNIFIEDAMP_BACKEND", "UNIFIEDAMP_POLICY", "UNIFIEDAMP_LOSS_SCALE"]),
    st.sampled_from(
        ["toy", "mixed_float16", "p=float32,c=float16,o=float32;ops=exp:float32", "dynamic", "static(scale=8)"]
    ),
    st.integers(0, 60),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4),
    st.booleans(),
)
def test_environment_variables(name, text, at, put, replace):
    """A valid text, in which some characters are changed or put in."""
    text = text[:at] + put + text[at + len(put) * replace :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, text)
        only_our_errors(lambda: use({"policy": None}))
        only_our_errors(lambda: read_arguments({"backend": "toy", "policy": "float32"}))
        only_our_errors(lambda: Amp("toy"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"loss_scale": {"kind": ["x"]}}, r"unknown loss scale \['x'\]"),
        ({"loss_scale": {"kind": None}}, "unknown loss scale None"),
        ({"loss_scale": True}, "loss_scale"),
        ({"loss_scale": 10**400}, "float32 can hold"),
        ({"loss_scale": 10**5000}, "float32 can hold, got a value of type int"),
        ({"accumulate_steps": 10**5000}, "accumulate_steps: .*a value of type int"),
        ({"accumulate_steps": 2**31}, "accumulate_steps"),
        ({1: 2}, "a setting's name must be text, got 1"),
        ({"policy": "x" * 10**6}, "unknown policy"),
    ],
)
def test_values_that_once_came_through(table, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read = read_config(table)
        Amp.from_config({"backend": "toy", **{key: value for key, value in read.items() if value is not None}})
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"policy": "float32", "policy": "mixed_float16"}', "'policy' is there twice"),
        ('{"amp": {"loss_scale": {"kind": "none", "kind": "dynamic"}}}', "'kind' is there twice"),
        ('{"loss_scale": NaN}', "NaN is no number of JSON"),
        ('{"loss_scale": -Infinity}', "-Infinity is no number of JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"policy": "' + "x" * 2**20 + '"}', "it is larger than 1 MiB"),
    ],
)
def test_json_that_is_refused(tmp_path, text, message):
    assert_refused(tmp_path / "amp.json", text, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('policy = "float32"\npolicy = "mixed_float16"\n', "not valid TOML"),
        (".".join(["a"] * 100_000) + " = 1\n", r"a key of more than 16 parts \(line 1\)"),
        ("# a comment\n" + " . ".join(['"a"'] * 100_000) + " = 1\n", r"a key of more than 16 parts \(line 2\)"),
        ("x = {" + ".".join(["'a.b'"] * 100_000) + " = 1}\n", "a key of more than 16 parts"),
        ("[" + ".".join(["a"] * 100_000) + "]\n", "a key of more than 16 parts"),
        ("x = " + "[" * 100_000, "not valid TOML"),
        ("#" * 2**20 + "\n", "it is larger than 1 MiB"),
    ],
)
def test_toml_that_is_refused(tmp_path, text, message):
    assert_refused(tmp_path / "amp.toml", text, message)


def assert_refused(path, text, message):
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_dots_that_are_no_key_are_taken(tmp_path):
    """In strings, lists of numbers and comments."""
    path = tmp_path / "amp.toml"
    layers = ", ".join(f'"encoder.{n}.attention.output"' for n in range(50))
    path.write_text(
        f"# {'.' * 70}\n[tuning]\ncheckpoint_layers = [{layers}]\n[backend_options.toy]\nx = [{'1.5, ' * 50}]\n"
    )
    assert len(read_config(path)["tuning"]["checkpoint_layers"]) == 50


@pytest.mark.parametrize(
    ("setting", "value"),
    [("width", 10**9), ("epochs", 10**12), ("batch_size", 2**31), ("samples", 2**40), ("seed", 2**64),
     ("learning_rate", 1e30), ("checkpoint_every", 10**12), ("log_every", 10**12), ("clip_norm", 1e39)],
)  # fmt: skip
def test_numbers_that_no_training_has(tmp_path, setting, value):
    path = tmp_path / "amp.json"
    table = {setting: value}
    of_loop = setting in TrainTable.model_fields
    chosen = {"model": "resnet50", **({} if of_loop else table)}
    path.write_text(json.dumps({"workload": CLASSIFIER, "settings": chosen, "train": table if of_loop else {}}))
    with pytest.raises(ConfigError, match=setting):
        use_workload(path)
