"""Backends in the making: what their authors get wrong is named, with the object and what it should be."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.backend import PRESETS, Backend, BackendPlugin, Capabilities, Compiler, Support, Training, hookimpl
from unifiedamp.backend import Unsupported as NoRole
from unifiedamp.config import plugins


class PreparesAsTold(Training):
    """Returns from ``prepare`` what the class says."""

    answer = staticmethod(lambda models, optimizers: (models, optimizers))

    def is_model(self, obj):
        return isinstance(obj, np.ndarray)

    def prepare(self, models, optimizers):
        return self.answer(models, optimizers)


class Minimal(Backend):
    name = "minimal"
    training = PreparesAsTold()

    def declare(self):
        return Capabilities("cpu", {name: Support(name == "float32") for name in PRESETS}, features={})


@pytest.fixture
def session(monkeypatch):
    """Make a session of a backend that the plugin's ``load`` returns."""

    def make(loaded):
        class Plugin:
            @hookimpl
            def unifiedamp_backend(self):
                return BackendPlugin("minimal", "numpy", ("numpy",), "pip install numpy", lambda: loaded)

        monkeypatch.setitem(plugins._in_process, "minimal", plugins.InProcess("minimal", Plugin()))
        return ua.Amp("minimal", "float32")

    return make


@pytest.mark.parametrize("loaded", [None, int, Backend, Minimal], ids=["nothing", "another class", "base", "right"])
def test_what_load_returns(session, loaded):
    if loaded is Minimal:
        assert session(loaded).backend.name == "minimal"
        return
    error, said = ua.BackendUnavailableError, r"load\(\) returned .*, not a class derived from Backend"
    if loaded is Backend:
        error, said = ua.UnsupportedError, "Backend has no declare yet"
    with pytest.raises(error, match=said):
        session(loaded)


def test_a_feature_under_an_unknown_name(session):
    class Wrong(Minimal):
        def declare(self):
            return Capabilities("cpu", super().declare().policies, {"acumulation": Support(True)})

    with pytest.raises(ua.UnsupportedError, match=r"not declared .* declares 'acumulation', .* none of FEATURES"):
        session(Wrong).backend.require("accumulation", "Amp(accumulate_steps=2)")


@pytest.mark.parametrize("declared", [None, {"cpu": True}])
def test_capabilities_of_another_kind(session, declared):
    wrong = type("Wrong", (Minimal,), {"declare": lambda self: declared})
    with pytest.raises(ua.BackendUnavailableError, match=r"'minimal': declare\(\) returned .*, not Capabilities"):
        session(wrong)


@pytest.mark.parametrize("role", [None, "compiler", Compiler, NoRole], ids=["none", "text", "a class", "Unsupported"])
def test_what_is_no_role(session, role):
    with pytest.raises(ua.BackendUnavailableError, match=r"its compiler is .*or Unsupported\('why'\)"):
        session(type("Wrong", (Minimal,), {"compiler": role}))


@pytest.mark.parametrize(
    "answer",
    [lambda models, optimizers: None, lambda models, optimizers: models, lambda models, optimizers: ([], []),
     lambda models, optimizers: (models, [])],
    ids=["nothing", "models alone", "too few", "no optimizers"],
)  # fmt: skip
def test_prepare_returns_one_for_each(session, monkeypatch, answer):
    amp, model, optimizer = session(Minimal), np.ones(2), object()
    monkeypatch.setattr(PreparesAsTold, "answer", staticmethod(answer))
    with pytest.raises(ua.BackendUnavailableError, match=r"prepare returned .*the 1 models and the 1 optimizers"):
        amp.prepare(model, optimizer)


def test_attributes_that_are_missing(session):
    with pytest.raises(ua.UnsupportedError, match="Device has no name yet. The device in the framework's spelling"):
        repr(session(Minimal))

    class Forgetful(Minimal):
        def __init__(self, spec):
            self.given = spec

    with pytest.raises(ua.UnsupportedError, match=r"Forgetful has no spec yet. Call super\(\).__init__\(spec\)"):
        session(Forgetful).prepare(np.ones(2))
