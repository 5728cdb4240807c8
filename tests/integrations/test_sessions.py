"""What a session gives inside every trainer: its plan, observers, the recorder, exhaustion; what is refused."""

import json

import pytest

torch = pytest.importorskip("torch")

import probes

import unifiedamp as ua
from unifiedamp.integrations import versions

INF, NAN = float("inf"), float("nan")
every_host = pytest.mark.parametrize("host", probes.HOSTS)


class Observer:
    def __init__(self):
        self.calls = []

    def on_step_skipped(self, state, report):
        self.calls.append(("skipped", state.skipped_steps, report.tensors))

    def on_scale_changed(self, before, after):
        self.calls.append((before, after))


@every_host
def test_observers_are_told(host):
    observer = Observer()
    scale = ua.DynamicLossScale(initial_scale=8.0, growth_interval=2)
    what = probes.Run(probes.session(loss_scale=scale), [1.0, INF, 1.0, 1.0], prepare=lambda amp: amp.observe(observer))
    probes.run(host, what)
    (skipped, _, tensors), *changes = observer.calls
    assert skipped == "skipped"
    assert len(tensors) == 1
    assert tensors[0].endswith("weight")
    assert changes == [(8.0, 4.0), (4.0, 8.0)]


@every_host
def test_the_recorder_follows(host, tmp_path):
    path = tmp_path / "run.jsonl"
    recorders = []
    what = probes.Run(
        probes.session(loss_scale=4.0),
        [(1.0, 2.0), (INF, 0.0), (3.0, 4.0)],
        prepare=lambda amp: recorders.append(amp.record(path, every=1)),
    )
    probes.run(host, what)
    recorders[0].stop()
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = [record for record in records if record["kind"] == "step"]
    assert [(step["step"], step["applied"]) for step in steps] == [(1, True), (2, False), (3, True)]
    assert [step["scale"] for step in steps] == [4.0] * 3


@every_host
def test_the_plan_is_explained(host):
    what = probes.Run(probes.session(loss_scale=4.0), [1.0])
    probes.run(host, what)
    assert "mixed_float16" in str(what.amp.explain())


@every_host
@pytest.mark.parametrize("on_device", [False, True])
def test_exhaustion_ends_the_run(host, on_device):
    scale = ua.DynamicLossScale(initial_scale=8.0, max_consecutive_skips=3)
    options = {"torch": {"scale_on_device": on_device}}
    what = probes.Run(probes.session(loss_scale=scale, backend_options=options), [1.0] + [NAN] * 120)
    with pytest.raises(ua.LossScaleExhausted, match="weight") as caught:
        probes.run(host, what)
    assert caught.value.skips >= 3
    assert [each[0] for each in what.column("weights")] == [0.875] * len(what.seen)


@every_host
def test_a_session_is_made_of_a_policy_and_settings(host):
    settings = {"loss_scale": ua.DynamicLossScale(initial_scale=16.0), "compile": "off"}
    what = probes.Run("mixed_float16", [1.0, 1.0], settings=settings)
    ran = probes.run(host, what)
    assert str(ran.amp.policy.replace(loss_scale=None)) == "mixed_float16"
    assert ran.amp.compile_mode == "off"
    assert ran.column("scale_after") == [16.0, 16.0]
    assert ran.column("weights") == [[0.875], [0.75]]


@every_host
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16", "float16"])
def test_every_policy_trains(host, policy):
    settings = {"loss_scale": "none"} if policy == "float16" else {}
    ran = probes.run(host, probes.Run(probes.session(policy, **settings), [1.0, 2.0, 1.0]))
    assert ran.column("weights") == [[0.875], [0.625], [0.5]]
    assert ran.amp.applied_steps == 3


@every_host
def test_gradients_stay_for_the_trainers_hooks(host):
    """True ones, after the step, until the trainer zeroes them; as with the trainer's own precision.

    Lightning zeroes before each backward pass and not after the last one, the others after each step.
    """
    found = []

    class Looking(torch.optim.SGD):
        def zero_grad(self, *args, **kwargs):
            found.extend(float(p.grad) for group in self.param_groups for p in group["params"] if p.grad is not None)
            super().zero_grad(*args, **kwargs)

    class Zeroed(probes.Probe):
        """Hugging Face's Trainer zeroes gradients through the model."""

        def zero_grad(self, *args, **kwargs):
            found.extend(float(p.grad) for p in self.parameters() if p.grad is not None)
            super().zero_grad(*args, **kwargs)

    model = Zeroed() if host == "transformers" else None
    probes.run(host, probes.Run(probes.session(loss_scale=64.0), [1.0, 3.0], optimizer=Looking, model=model))
    assert found == ([1.0] if "lightning" in host else [1.0, 3.0])


# -- what is refused ---------------------------------------------------------------------------------------------------


@every_host
def test_a_parameter_that_no_optimizer_has_is_refused(host):
    class Exchanging(probes.Run):
        def look(self):
            super().look()
            self.model.weight = torch.nn.Parameter(self.model.weight.detach().clone())

    with pytest.raises(ua.PrepareError, match=r"'.*weight' came into the model after amp\.prepare"):
        probes.run(host, Exchanging(probes.session(loss_scale=4.0), [1.0, 1.0]))


@every_host
def test_a_session_of_another_backend_is_refused(host):
    amp = ua.Amp("toy", "float32")
    with pytest.raises(ua.WrongObjectError, match="backend is 'toy'.*pass ua.Amp\\('torch'"):
        probes.run(host, probes.Run(amp, [1.0]))
    with pytest.raises(ua.WrongObjectError, match="backend='mxnet'"):
        probes.run(host, probes.Run("float32", [1.0], settings={"backend": "mxnet"}))


@every_host
def test_a_session_that_accumulates_is_refused(host):
    amp = probes.session(accumulate_steps=2)
    with pytest.raises(ua.ConfigError, match="accumulates gradients by itself"):
        probes.run(host, probes.Run(amp, [1.0]))


@every_host
def test_settings_beside_a_session_are_refused(host):
    with pytest.raises(ua.ConfigError, match="loss_scale beside a session"):
        probes.run(host, probes.Run(probes.session(), [1.0], settings={"loss_scale": 4.0}))


@every_host
@pytest.mark.parametrize("session", [3, torch.nn.Linear(1, 1)])
def test_what_is_no_session_is_refused(host, session):
    with pytest.raises(ua.WrongObjectError, match="expected a ua.Amp or a policy"):
        probes.run(host, probes.Run(session, [1.0]))


@every_host
def test_an_unknown_policy_is_refused(host):
    with pytest.raises(ua.PolicyError, match="mixed_float17"):
        probes.run(host, probes.Run("mixed_float17", [1.0]))


@every_host
def test_a_setting_of_the_trainers_is_refused(host):
    with pytest.raises(ua.ConfigError, match="accumulates gradients by its own"):
        probes.run(host, probes.Run("mixed_float16", [1.0], settings={"accumulate_steps": 2}))
    with pytest.raises((ua.ConfigError, TypeError), match="los_scale"):
        probes.run(host, probes.Run("mixed_float16", [1.0], settings={"los_scale": 4.0}))


@pytest.mark.parametrize("name", [name for name in ("lightning", "pytorch_lightning") if name in probes.HOSTS])
def test_precision_set_twice_is_refused_by_lightning(name):
    pl, plugin = probes.lightning_of(name)
    with pytest.raises(ValueError, match="both `precision=bf16-mixed` and `plugins=AmpPrecision"):
        probes.quiet_trainer(pl, plugin("mixed_bfloat16"), precision="bf16-mixed")


def test_precision_set_twice_is_refused_by_fabric():
    fabric = pytest.importorskip("lightning.fabric")
    from unifiedamp.integrations.fabric import AmpPrecision

    with pytest.raises(ValueError, match="both `precision=bf16-mixed` and `plugins=AmpPrecision"):
        fabric.Fabric(accelerator="cpu", precision="bf16-mixed", plugins=[AmpPrecision("mixed_bfloat16")])


def test_precision_set_twice_is_refused_by_accelerate(monkeypatch):
    pytest.importorskip("accelerate")
    from unifiedamp.integrations.accelerate import AmpAccelerator

    with pytest.raises(ua.ConfigError, match="set twice.*mixed_precision='bf16'"):
        AmpAccelerator("mixed_bfloat16", cpu=True, mixed_precision="bf16")


def test_precision_from_the_environment_is_refused_by_accelerate(monkeypatch):
    pytest.importorskip("accelerate")
    from unifiedamp.integrations.accelerate import AmpAccelerator

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(ua.ConfigError, match="ACCELERATE_MIXED_PRECISION"):
        AmpAccelerator("mixed_bfloat16", cpu=True)


def test_precision_set_twice_is_refused_by_the_trainer():
    transformers = pytest.importorskip("transformers")
    from unifiedamp.integrations.transformers import attach

    model = probes.Outputs(probes.Probe())
    trainer = transformers.Trainer(model, probes.trainer_arguments(bf16=True))
    with pytest.raises(ua.ConfigError, match="set twice.*bf16=True"):
        attach(trainer, "mixed_bfloat16")
    with pytest.raises(ua.WrongObjectError, match="expected a transformers.Trainer, got Probe"):
        attach(probes.Probe(), "mixed_bfloat16")


def test_the_scaler_is_a_native_one_by_its_calls():
    pytest.importorskip("accelerate")
    from unifiedamp.integrations.accelerate import AmpAccelerator

    accelerator = AmpAccelerator(probes.session(loss_scale=ua.DynamicLossScale(64.0, growth_interval=7)))
    net = probes.Probe()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.125))
    scaler = accelerator.scaler
    assert isinstance(scaler, torch.amp.GradScaler)
    assert (scaler.is_enabled(), scaler.get_scale(), scaler.get_growth_interval()) == (True, 64.0, 7)
    scaler.scale(model(torch.tensor([2.0]))).backward()
    assert float(net.weight.grad) == 128.0
    scaler.unscale_(optimizer.optimizer)
    assert float(net.weight.grad) == 2.0
    scaler.step(optimizer.optimizer)
    scaler.update()
    assert float(net.weight.detach()) == 0.75
    scaler.update(16.0)
    assert accelerator.amp.loss_scale == 16.0
    with pytest.raises(ua.UnsupportedError, match="loss_scale=ua.DynamicLossScale\\(growth_interval=5\\)"):
        scaler.set_growth_interval(5)


def test_accumulating_in_masters_of_several_processes_is_refused(monkeypatch):
    pytest.importorskip("accelerate")
    from unifiedamp.integrations import host_steps
    from unifiedamp.integrations.accelerate import AmpAccelerator

    accelerator = AmpAccelerator(probes.session("bfloat16", master_weights=True))
    net = probes.Probe()
    model, _ = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.125))
    monkeypatch.setattr(host_steps, "_processes", lambda: 2)
    accelerator.backward(model(torch.tensor([2.0])))
    with pytest.raises(ua.UnsupportedError, match="2 processes cannot accumulate"):
        accelerator.backward(model(torch.tensor([2.0])))


def test_attaching_twice_is_refused():
    pytest.importorskip("accelerate")
    from accelerate import Accelerator

    from unifiedamp.integrations.accelerate import attach

    accelerator = attach(Accelerator(cpu=True), probes.session())
    with pytest.raises(ua.ConfigError, match="has a session already"):
        attach(accelerator, probes.session())


@pytest.mark.parametrize("kind", ["DeepSpeedStrategy", "ModelParallelStrategy"])
def test_a_strategy_that_cannot_work_is_named(kind):
    pytest.importorskip("lightning")
    from unifiedamp.integrations.trainer_precision import check_strategy

    strategy = type(kind, (), {})()
    with pytest.raises(ua.UnsupportedError, match=f"{kind} cannot be used.*DDPStrategy"):
        check_strategy(type("Mine", (type(strategy),), {})()) if kind == "Mine" else check_strategy(strategy)


def test_fsdp_is_refused_by_lightning():
    pl = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.strategies import FSDPStrategy

    from unifiedamp.integrations.lightning import AmpPrecision

    with pytest.raises(TypeError, match="FSDP strategy.*AmpPrecision"):
        FSDPStrategy(precision_plugin=AmpPrecision("mixed_bfloat16"))
    assert pl


def test_a_distribution_that_cannot_work_is_named():
    pytest.importorskip("accelerate")
    from accelerate import Accelerator, DistributedType

    from unifiedamp.integrations.accelerate import attach

    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = DistributedType.FSDP
    with pytest.raises(ua.UnsupportedError, match="distributed_type FSDP cannot be used.*MULTI_GPU"):
        attach(accelerator, probes.session())


def test_an_old_library_is_named(monkeypatch):
    monkeypatch.setattr(versions.metadata, "version", lambda name: "2.3.9")
    with pytest.raises(ua.UnsupportedError, match=r"needs lightning 2.4 or newer, found 2.3.9: pip install -U"):
        versions.require("lightning", "2.4", "unifiedamp.integrations.lightning")
    for newer in ("2.4", "2.4.0rc1", "2.10.0", "3.0.0.dev0"):
        monkeypatch.setattr(versions.metadata, "version", lambda name, found=newer: found)
        versions.require("lightning", "2.4", "unifiedamp.integrations.lightning")


def test_a_missing_library_is_named():
    with pytest.raises(ModuleNotFoundError, match="needs no-such-library 1.0 or newer, and it is not installed"):
        versions.require("no-such-library", "1.0", "unifiedamp.integrations.none")


def test_a_session_on_another_device_is_refused():
    from unifiedamp.integrations.session_source import check_device

    with pytest.raises(ua.ConfigError, match="session is on 'cpu', the trainer on 'cuda:1'.*device='cuda:1'"):
        check_device("AmpPrecision", probes.session(), torch.device("cuda", 1))


def test_a_session_before_it_is_made_says_when(monkeypatch):
    pytest.importorskip("lightning")
    from unifiedamp.integrations.lightning import AmpPrecision

    with pytest.raises(ua.StepOrderError, match="made when the trainer has its device"):
        _ = AmpPrecision("mixed_float16").amp
