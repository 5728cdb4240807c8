"""OmegaConf's containers, as Hydra hands them to an application, wherever a session takes a configuration."""

import dataclasses
import enum
import subprocess
import sys
import textwrap

import pytest

import unifiedamp as ua

omegaconf = pytest.importorskip("omegaconf")
from omegaconf import MISSING, OmegaConf

WRITTEN = {
    "train": {"scale": 1024.0, "glob": "hidden*"},
    "data": {"path": "???", "other": "${nowhere}"},
    "amp": {
        "backend": "toy",
        "accumulate_steps": 2,
        "policy": {"name": "mixed_float16", "layer_overrides": {"head": "float32"}},
        "loss_scale": {"kind": "dynamic", "initial_scale": "${train.scale}", "growth_interval": 7},
        "tuning": {"checkpoint_layers": ["${train.glob}", "out"]},
        "backend_options": {"toy": {}},
    },
}  # fmt: skip
POLICY = ua.Policy.parse("mixed_float16").replace(layer_overrides={"head": "float32"})
SCALE = ua.DynamicLossScale(initial_scale=1024.0, growth_interval=7)


@pytest.fixture
def cfg():
    return OmegaConf.create(WRITTEN)


def check(amp):
    assert amp.policy.replace(loss_scale=None) == POLICY
    assert amp.loss_scale_settings == SCALE
    assert amp.tuning.checkpoint_layers == ("hidden*", "out")
    assert amp.state_dict()["loss_scale"] == SCALE.to_dict()


@pytest.mark.filterwarnings("ignore::unifiedamp.TuningWarning")
def test_a_whole_configuration_and_its_table(cfg):
    """Missing values and interpolations outside the table [amp] are none of ours."""
    check(ua.Amp.from_config(cfg))
    check(ua.Amp.from_config(cfg.amp))
    check(ua.Amp.from_config({"amp": cfg.amp}))
    check(ua.Amp.from_config(dict(cfg.amp)))


@pytest.mark.filterwarnings("ignore::unifiedamp.TuningWarning")
def test_every_argument(cfg):
    check(ua.Amp(**cfg.amp))
    check(
        ua.Amp(
            "toy",
            cfg.amp.policy,
            loss_scale=cfg.amp.loss_scale,
            tuning=cfg.amp.tuning,
            backend_options=cfg.amp.backend_options,
        )
    )
    check(ua.Amp.from_config({"backend": "toy"}, **{k: cfg.amp[k] for k in ("policy", "loss_scale", "tuning")}))


def test_values_of_ours_take_parts_of_it(cfg):
    policy = ua.Policy(compute_dtype="float16", layer_overrides=cfg.amp.policy.layer_overrides)
    assert (policy, hash(policy)) == (POLICY, hash(POLICY))
    ops = OmegaConf.create({"softmax": "float32"})
    assert ua.Policy(op_overrides=ops) == ua.Policy(op_overrides={"softmax": "float32"})
    assert ua.Tuning(checkpoint_layers=cfg.amp.tuning.checkpoint_layers).checkpoint_layers == ("hidden*", "out")
    assert ua.Policy(loss_scale=cfg.amp.loss_scale).loss_scale == SCALE


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("amp.loss_scale.initial_scale", "???", r"amp\.loss_scale\.initial_scale is missing \('\?\?\?'\)"),
        ("amp", "???", r"amp is missing"),
        ("train.scale", "???", r"amp\.loss_scale\.initial_scale"),
        ("amp.tuning.checkpoint_layers", ["a", "???"], r"amp\.tuning\.checkpoint_layers\[1\] is missing"),
        ("amp.policy.name", "${train.nothing}", r"amp\.policy\.name cannot be read: .*train\.nothing"),
        ("amp.policy.nam", "x", "policy.nam'; did you mean 'name'"),
        ("amp.losscale", 1, "unknown key 'losscale'; did you mean 'loss_scale'"),
        ("amp.loss_scale.growth_interval", "often", "growth_interval must be a whole number"),
        ("amp", [1], "expected a table of settings"),
    ],
)
def test_what_cannot_be_read_is_named(cfg, key, value, message):
    OmegaConf.update(cfg, key, value, merge=False)
    with pytest.raises(ua.ConfigError, match=message):
        ua.Amp.from_config(cfg)


@pytest.mark.parametrize("argument", ["policy", "loss_scale", "tuning", "backend_options"])
def test_a_missing_value_of_an_argument_is_named(argument):
    value = OmegaConf.create({argument: {"toy": {"x": "???"}}})[argument]
    with pytest.raises(ua.ConfigError, match=rf"{argument}: {argument}\.toy\.x is missing"):
        ua.Amp("toy", **{argument: value})


class Kind(enum.Enum):
    dynamic = 1
    static = 2


@dataclasses.dataclass
class ScaleConf:
    kind: Kind = Kind.dynamic
    initial_scale: float = 8.0
    growth_interval: int = MISSING


@dataclasses.dataclass
class AmpConf:
    backend: str = "toy"
    policy: str = "mixed_float16"
    loss_scale: ScaleConf = dataclasses.field(default_factory=ScaleConf)


def test_structured_configurations():
    typed = OmegaConf.structured(AmpConf)
    with pytest.raises(ua.ConfigError, match=r"loss_scale\.growth_interval is missing"):
        ua.Amp.from_config(typed)
    typed.loss_scale.growth_interval = 3
    OmegaConf.set_readonly(typed, True)
    amp = ua.Amp.from_config(typed)
    assert amp.loss_scale_settings == ua.DynamicLossScale(initial_scale=8.0, growth_interval=3)
    assert ua.Amp("toy", loss_scale=typed.loss_scale).loss_scale_settings == amp.loss_scale_settings


def test_a_configuration_is_read_and_left_as_it_is(cfg):
    before = OmegaConf.to_yaml(cfg)
    ua.Amp("toy", loss_scale=cfg.amp.loss_scale, tuning=None)
    assert OmegaConf.to_yaml(cfg) == before


APP = """
    import hydra
    import unifiedamp as ua
    from toy import registered

    @hydra.main(version_base=None, config_path="conf", config_name="config")
    def main(cfg):
        amp = ua.Amp.from_config(cfg)
        made = hydra.utils.instantiate(cfg.session)
        print(amp.policy.name, amp.loss_scale, made.loss_scale_settings)

    main()
"""
CONFIG = """
defaults: [{amp: half}, _self_]
first: 64.0
session: {_target_: unifiedamp.Amp, backend: toy, policy: mixed_float16, loss_scale: {initial_scale: "${first}"}}
"""
GROUP = """
backend: toy
policy: {name: mixed_float16, layer_overrides: {"head.*": float32}}
loss_scale: {initial_scale: "${first}", growth_interval: "???"}
"""


@pytest.fixture
def app(tmp_path):
    pytest.importorskip("hydra")
    (tmp_path / "conf/amp").mkdir(parents=True)
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    (tmp_path / "conf/config.yaml").write_text(CONFIG)
    (tmp_path / "conf/amp/half.yaml").write_text(GROUP)

    def run(*overrides):
        paths = f"import sys; sys.path[:0] = {sys.path!r}; sys.argv = ['app.py', *{overrides!r}]"
        code = f"{paths}; import runpy; runpy.run_path('app.py', run_name='__main__')"
        return subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

    return run


def test_a_hydra_application(app):
    done = app("amp.loss_scale.growth_interval=5", "first=128.0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["mixed_float16", "128.0", "dynamic(initial_scale=128.0)"]


def test_a_hydra_application_without_a_value(app):
    done = app()
    assert done.returncode
    assert "amp.loss_scale.growth_interval is missing ('???')" in done.stderr


def test_a_sweep(app):
    done = app("--multirun", "amp.loss_scale.growth_interval=5", "first=2.0,4.0")
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("mixed")] == ["2.0", "4.0"]
