"""The JSON schema of the configuration takes and refuses what ``Amp.from_config`` does; the shipped file holds it."""

from __future__ import annotations

import json
import re
import tomllib
import warnings
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from effort import FUZZ
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from toy.backend import ToyBackend
from typer.testing import CliRunner

from unifiedamp import Amp, AmpError, ConfigError, Policy, available_backends
from unifiedamp.backend import BackendPlugin, Support, hookimpl
from unifiedamp.cli import app
from unifiedamp.config import plugins
from unifiedamp.config.arguments import AmpConfig, PolicyTable
from unifiedamp.config.schema import FILE, make_schema, registered_plugins, schema_text

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ("torch", "tensorflow", "mxnet")
SHIPPED = json.loads(resources.files("unifiedamp.config").joinpath(FILE).read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SHIPPED)


def test_the_file_is_the_schema_of_the_bundled_backends():
    ours = [plugin for plugin in registered_plugins() if plugin.name in BUNDLED]
    assert schema_text(ours) == (ROOT / "unifiedamp" / "config" / FILE).read_text(encoding="utf-8")
    jsonschema.Draft7Validator.check_schema(SHIPPED)


def test_the_command_prints_it():
    run = CliRunner().invoke(app, ["schema"])
    assert run.exit_code == 0
    assert json.loads(run.stdout) == make_schema(registered_plugins())


def test_a_plugins_name_and_options_are_in_what_is_printed():
    mine = BackendPlugin("mine", "json", (), "", list, options={"fast": {"type": "boolean"}})
    validator = jsonschema.Draft7Validator(make_schema([mine]))
    assert validator.is_valid({"backend": "mine", "backend_options": {"mine": {"fast": True}}})
    assert not validator.is_valid({"backend_options": {"mine": {"fast": 1}}})
    assert not validator.is_valid({"backend_options": {"mine": {"fats": True}}})
    assert validator.is_valid({"backend": "another", "backend_options": {"another": {"x": [1]}}})


@pytest.mark.parametrize("options", [None, 3, {"x": 3}, {"x": {"default": object()}}])
def test_a_plugin_without_readable_options_takes_any(options):
    validator = jsonschema.Draft7Validator(make_schema([BackendPlugin("mine", "json", (), "", list, options=options)]))
    assert validator.is_valid({"backend_options": {"mine": {"x": [1]}}})
    assert not validator.is_valid({"backend_options": {"mine": 3}})


def test_each_setting_is_described():
    definitions = SHIPPED["definitions"]
    for name, model in (("amp", AmpConfig), ("policy", PolicyTable)):
        described = definitions[name]["properties"]
        assert set(described) == set(model.model_fields)
        for setting, schema in described.items():
            assert schema["description"].endswith("."), setting
    for option in (o for table in definitions["amp"]["properties"]["backend_options"]["anyOf"][:1]
                   for backend in table["properties"].values() for o in backend["properties"].values()):  # fmt: skip
        assert option["description"]


def test_defaults_are_those_of_the_session():
    properties = SHIPPED["definitions"]["amp"]["properties"]
    given = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
    assert given == {"accumulate_steps": 1, "strict": False, "master_weights": False, "compile": "default"}


@pytest.mark.parametrize("backend", [name for name in BUNDLED if available_backends()[name].installed])
def test_options_are_those_that_the_backend_checks(backend):
    options = plugins.load_plugin(backend).options
    with pytest.raises(ConfigError, match="it has: ") as unknown:
        use({"backend": backend, "policy": "float32", "backend_options": {backend: {"no such": 1}}})
    (known,) = re.findall(r"it has: ([^)]*)\)", str(unknown.value))
    assert set(known.split(", ")) == set(options)
    for name, schema in options.items():
        right = schema.get("default", 0 if schema.get("type") == "integer" else False)
        for value in (right, "x", None, 1.5):
            table = {"backend": backend, "policy": "float32", "backend_options": {backend: {name: value}}}
            assert VALIDATOR.is_valid(table) == accepted(table) == (value is right), (name, value)


# -- files that we show ------------------------------------------------------------------------------------------------


def shown_configurations():
    """Yield page and text of each configuration of the documentation, and of the shipped ones."""
    for path in sorted((ROOT / "examples").rglob("*.toml")):
        if "configs" in path.parts:
            yield path.name, path.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)):
            if is_configuration(tomllib.loads(block)):
                yield f"{page.name}-{number}", block


def is_configuration(table):
    return "amp" in table or bool(table.keys() & AmpConfig.model_fields.keys())


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in shown_configurations()])
def test_configurations_that_we_show_are_valid(text):
    assert list(VALIDATOR.iter_errors(tomllib.loads(text))) == []


# -- both ways ---------------------------------------------------------------------------------------------------------


GRANTED = ("master_weights", "reduce_dtype", "emulation")


class Roomy(ToyBackend):
    """Takes every policy, so that what it refuses was wrong in itself."""

    name = "roomy"

    def __init__(self, spec):
        spec.check_options([], "roomy")
        super().__init__(replace(spec, policy=Policy(), options={}))

    def declare(self):
        found = super().declare()
        return replace(found, features={**found.features, **dict.fromkeys(GRANTED, Support(True))})


class RoomyPlugin:
    @hookimpl
    def unifiedamp_backend(self):
        return BackendPlugin("roomy", "json", (), "", lambda: Roomy, options={})


@pytest.fixture(scope="module", autouse=True)
def roomy():
    points = {**plugins.backend_entry_points(), "roomy": plugins.InProcess("roomy", RoomyPlugin())}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "backend_entry_points", lambda: points)
        yield


BEYOND = (
    "lies outside", "has no meaning under policy", "needs float32 parameters", "op_overrides.linear is",
    "compute_dtype float8 needs", "has no effect here", "has no effect with", "so nothing runs in float8",
    "contradicts", "numerics on any device",
    "overflows above 65504",
)  # fmt: skip
"""What is wrong only with two settings together, or only on some machines."""


def use(table):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Amp.from_config(table).close()


def accepted(table):
    """Return whether ``Amp.from_config`` takes a configuration; None where it depends on two settings together."""
    try:
        use(table)
    except AmpError as error:
        return None if any(said in str(error) for said in BEYOND) else False
    return True


def mostly(right, *wrong):
    """Return a strategy that draws a wrong value now and then."""
    return st.integers(0, 19).flatmap(lambda n: st.sampled_from([*wrong, [], {"x": 1}, True]) if n == 7 else right)


def with_unknown(tables):
    """Return a strategy that puts a setting of an unknown name into a table now and then."""
    return st.tuples(tables, mostly(st.none(), "polcy")).map(
        lambda drawn: {**drawn[0], "polcy": 1} if drawn[1] == "polcy" else drawn[0]
    )


DTYPES = mostly(st.sampled_from(["float32", "float16", "bfloat16", "bf16", "FP16", " f32 "]), "float8", "fp32x", "", 3)
COMPUTE = mostly(st.sampled_from(["float32", "float16", "bfloat16", "BF16", "float8", "fp8"]), "int8", "float 32", 3)
COUNTS = mostly(st.sampled_from([1, 2, 500, 2**31 - 1]), 0, -1, 2**31, 1.5, "4", None)
COUNTS_OF_HISTORY = mostly(st.sampled_from([1, 16, 9999]), 0, 10_000, 1.5, "4", None)
NUMBERS = mostly(
    st.sampled_from([1, 8.0, 1024, 2.5, 1e-30, 3e38]), 0, -1.0, float("inf"), 1e39, 10**400, 1e-300, "8", None
)
FACTORS = mostly(st.sampled_from([1.5, 2, 1e6]), 1, 1.0, 0.5, 0, -2, "2")
BACKOFFS = mostly(st.sampled_from([0.5, 0.999, 1e-6]), 1, 1.0, 2, 0, -0.5, "2")
SCALE_TABLES = with_unknown(st.one_of(
    st.fixed_dictionaries({}, optional={
        "kind": mostly(st.just("dynamic"), "static", "dynamci", "Dynamic", None), "initial_scale": NUMBERS,
        "growth_factor": FACTORS, "backoff_factor": BACKOFFS, "growth_interval": COUNTS, "hysteresis": COUNTS,
        "hysteresis_reset": mostly(st.sampled_from(["good_step", "growth"]), "good_steps", "Growth", None, 1),
        "min_scale": NUMBERS, "max_scale": NUMBERS, "max_consecutive_skips": COUNTS,
    }),
    st.fixed_dictionaries({"kind": st.just("static")}, optional={
        "scale": NUMBERS, "max_consecutive_skips": COUNTS,
    }),
    st.sampled_from([{"kind": "none"}, {"kind": "none", "scale": 1.0}, {"kind": "static", "growth_factor": 2.0}]),
))  # fmt: skip
SCALE_TEXTS = [
    "dynamic", "Dynamic", " none ", "static", "static(scale=128.0)", "dynamic(initial_scale=8, growth_interval=3,)",
    "128", "2e3", ".5", "dynamic()", "none()", "STATIC ( scale = 4 )",
    "dynamic(hysteresis=2,hysteresis_reset=growth)", "dynamic( hysteresis_reset = good_step )",
]  # fmt: skip
WRONG_SCALE_TEXTS = [
    "", "dynamc", "static(scal=3)", "static(scale=0)",
    "static(scale=x)", "dynamic(", "none(scale=1)", "-3", "0", "0.0", "dynamic(growth_interval=2.0)",
    "static(scale=1)x", "dynamic(hysteresis=0)", "(scale=3)", "dynamic(hysteresis_reset=never)",
    "dynamic(hysteresis_reset=2)", "dynamic(hysteresis_reset='growth')", "1 2",
]  # fmt: skip
SCALE_TEXTS_MOSTLY = mostly(st.sampled_from(SCALE_TEXTS), *WRONG_SCALE_TEXTS)
NAMES = [
    "float32", "mixed_float16", "MIXED_bfloat16", "mixed_float8", "O1", "o0", "bf16-mixed", "16-true", "fp8", "no",
    "float8_from_mixed_bfloat16", "mixed_NVFP4", "p=float32,c=float16", "p=f32, c=bf16, o=f32",
    "params=float32,compute=FP8", "c=float16,p=float32", "P=float16,C=float16",
]  # fmt: skip
WRONG_NAMES = [
    "", "mixed", "16", "half", "float64", "mixed-float16", "p=float32", "c=float16", "p=float32,c=int8", "mixed_mxfp5",
    "p=float8,c=float8", "p=float32,c=float16,x=1", "p=float32,c=float16,", "p=float32;c=float16", "float32,",
]  # fmt: skip
SETTINGS = [
    "ops=softmax:float32", "ops=softmax:float32,exp:widest", "ops=", "layers=head.*:float32", "layers=a*:bf16,b:c:FP16",
    "keep_norm_float32=false", "keep_norm_float32 = True", "emulate=true",
    "loss_scale=dynamic(initial_scale=8.0)", "loss_scale=4",
    "recipe=Delayed", "recipe = Float8BlockScaling", "recipe=MXFP8BlockScaling", "wgrad=bfloat16",
    "amax_history=9999", "margin=9",
]  # fmt: skip
WRONG_SETTINGS = [
    "", "ops=softmx:float32", "ops=softmax:bfloat16", "ops=softmax", "ops=softmax: float32", "layers=:float32",
    "layers= :float32", "layers=a:float8", "keep_norm_float32=yes", "Ops=exp:widest", "loss_scale=dynamci", "x=1",
    "recipe=mxfp8", "fprop=float16", "amax_history=0", "amax_history=10000", "margin=10", "margin=-1",
]  # fmt: skip
POLICY_TEXTS = st.builds(
    lambda name, settings: ";".join([str(name), *map(str, settings)]),
    mostly(st.sampled_from(NAMES), *WRONG_NAMES),
    st.lists(
        mostly(st.sampled_from(SETTINGS), *WRONG_SETTINGS),
        max_size=2,
        unique_by=lambda setting: str(setting).partition("=")[0].strip(),
    ),
)
OPS = st.dictionaries(
    mostly(st.sampled_from(["softmax", "linear", "exp"]), "softmx", "").map(str),
    mostly(st.sampled_from(["compute", "float32", "widest"]), "float16", "", None),
    max_size=2,
)
LAYERS = st.dictionaries(
    mostly(st.sampled_from(["head.*", "a", " b "]), "", "  ", "a,b", "a;b").map(str), DTYPES, max_size=2
)
POLICY_TABLES = with_unknown(st.fixed_dictionaries({}, optional={
    "name": mostly(POLICY_TEXTS, None, 3), "param_dtype": DTYPES, "compute_dtype": COMPUTE, "output_dtype": DTYPES,
    "op_overrides": mostly(OPS, None, "x"), "layer_overrides": mostly(LAYERS, None, "x"),
    "keep_norm_float32": mostly(st.booleans(), None, 1, "false"), "emulate": mostly(st.booleans(), None, 1, "true"),
    "recipe": mostly(st.sampled_from(["rowwise", " DelayedScaling "]), "mxfp8", None),
    "amax_history": COUNTS_OF_HISTORY,
}))  # fmt: skip
FLAGS = mostly(st.booleans(), 1, 0, "true", None)
TUNINGS = st.one_of(
    mostly(st.sampled_from(["fast", "off"]), "Fast", "", "max"),
    with_unknown(st.fixed_dictionaries({}, optional={
        "preset": mostly(st.sampled_from(["fast", "off"]), "max", None), "tf32": FLAGS, "channels_last": FLAGS,
        "compile": FLAGS, "best_effort": FLAGS,
        "checkpoint_layers": mostly(st.lists(st.sampled_from(["a.*", "b"]), max_size=2), "a", [""], [1], None),
    })),
)  # fmt: skip
OPTIONS = mostly(st.sampled_from([{}, {"roomy": {}}, None]), {"roomy": {"x": 1}}, {"roomy": 3}, {"roomy": None}, 3)
AMP = with_unknown(st.fixed_dictionaries({"backend": st.just("roomy")}, optional={
    "policy": mostly(st.one_of(POLICY_TEXTS, POLICY_TABLES), None, 3),
    "loss_scale": mostly(st.one_of(NUMBERS, SCALE_TEXTS_MOSTLY, SCALE_TABLES), None),
    "accumulate_steps": COUNTS, "device": mostly(st.just("cpu"), None, 3), "strict": mostly(st.just(False), 1, None),
    "master_weights": mostly(st.booleans(), 0, "yes", None), "reduce_dtype": mostly(DTYPES, None),
    "compile": mostly(st.sampled_from(["default", "max", "off"]), "fast", "", "Max", None),
    "tuning": mostly(TUNINGS, None, 3), "backend_options": OPTIONS,
}))  # fmt: skip
CONFIGURATIONS = st.one_of(AMP, st.builds(lambda amp, rest: {"amp": amp, **rest}, AMP, st.sampled_from([{}, {"x": 1}])))


@pytest.fixture(scope="module")
def valid(roomy):
    made = jsonschema.Draft7Validator(make_schema(registered_plugins()))
    return lambda table: made.is_valid(table)


@settings(max_examples=2 * FUZZ, deadline=None, suppress_health_check=list(HealthCheck))
@example({"amp": None})
@example({"amp": []})
@given(st.deferred(lambda: CONFIGURATIONS))
def test_valid_is_what_a_session_takes(valid, table):
    taken = accepted(table)
    event(f"taken: {taken}")
    if taken is None:
        return
    assert valid(table) == taken


def pairs(name):
    return [(name,), *((name, each) for each in [*SETTINGS, *WRONG_SETTINGS])]


@pytest.mark.parametrize("key", ["policy", "loss_scale"])
def test_each_text_alone(valid, key):
    texts = [";".join(pair) for name in [*NAMES, *WRONG_NAMES] for pair in pairs(name)]
    for text in texts if key == "policy" else [*SCALE_TEXTS, *WRONG_SCALE_TEXTS]:
        table = {"backend": "roomy", key: text, **({"policy": "float32"} if key == "loss_scale" else {})}
        taken = accepted(table)
        assert taken is None or valid(table) == taken, text


@pytest.mark.parametrize("text", ["mixed_float16;layers=" + "a" * 50_000, "static(" + " " * 50_000, "p=" * 20_000])
def test_no_text_takes_long(valid, text):
    assert not valid({"policy": text, "loss_scale": text})
