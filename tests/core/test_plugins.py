"""Discovery: one backend is loaded by name, a broken one harms nobody, and errors say how to install."""

from importlib.metadata import EntryPoint

import pytest

import unifiedamp as ua
from unifiedamp import plugins
from unifiedamp.backend import BackendPlugin
from unifiedamp.plugins import hookimpl

GROUP = plugins.GROUP


class Registered:
    """Stands in for a module that an entry point names."""

    def __init__(self, framework="json", load=None, error=None, **answers):
        self.framework, self.load, self.error, self.answers = framework, load, error, answers

    @hookimpl
    def unifiedamp_backend(self):
        if self.error:
            raise self.error
        return BackendPlugin(
            "mine", self.framework, ("no-such-distribution",), "pip install mine", self.load, **self.answers
        )


@pytest.fixture
def register(monkeypatch):
    def put(**modules):
        points = {}
        for name, module in modules.items():
            globals()[f"_{name}"] = module
            points[name] = EntryPoint(name, f"{__name__}:_{name}", GROUP)
        monkeypatch.setattr(plugins, "backend_entry_points", lambda: points)

    return put


def test_unknown_backend_lists_the_known_and_the_nearest(register):
    register(torch=Registered(), mxnet=Registered())
    with pytest.raises(
        ua.BackendNotFoundError, match=r"unknown backend 'troch'; did you mean 'torch'.*mxnet.*pip install"
    ):
        ua.Amp("troch")


def test_missing_framework_says_how_to_install(register):
    register(mine=Registered("no_such_framework"))
    with pytest.raises(
        ua.BackendUnavailableError, match="needs no_such_framework, which is not installed: pip install mine"
    ):
        ua.Amp("mine")
    info = ua.available_backends()["mine"]
    assert not info.installed
    assert "no_such_framework is not installed" in info.reason


def test_broken_framework_shows_its_own_message(register):
    def load():
        raise OSError("libfoo.so.7: cannot open shared object file")

    register(mine=Registered(load=load))
    with pytest.raises(ua.BackendUnavailableError, match=r"json .*fails to import: OSError: libfoo.so.7"):
        ua.Amp("mine")


def test_the_plugin_says_what_to_do_about_an_import_that_failed(register):
    def load():
        raise errors.pop()

    errors = [OSError("libbar.so"), OSError("libfoo.so.7")]
    register(mine=Registered(load=load, import_hint=lambda error: "apt install foo" if "libfoo" in str(error) else ""))
    with pytest.raises(ua.BackendUnavailableError, match=r"OSError: libfoo\.so\.7\. apt install foo$"):
        ua.Amp("mine")
    with pytest.raises(ua.BackendUnavailableError, match=r"libbar\.so\. Mend or reinstall it: pip install mine$"):
        ua.Amp("mine")


@pytest.mark.parametrize("framework", ["json", "no_such_framework"])
def test_a_framework_that_cannot_run_here_is_not_advised_to_be_installed(register, framework):
    register(mine=Registered(framework, unavailable="json does not run under this Python; use another"))
    with pytest.raises(ua.BackendUnavailableError, match=r"^backend 'mine': json does not run .*; use another$"):
        ua.Amp("mine")
    info = ua.available_backends()["mine"]
    assert not info.installed
    assert info.reason == "json does not run under this Python; use another"


def test_broken_plugin_harms_nobody_else(register):
    register(broken=Registered(error=ZeroDivisionError("boom")), good=Registered())
    infos = ua.available_backends()
    assert infos["good"].installed
    assert "boom" in infos["broken"].reason
    with pytest.raises(ua.BackendUnavailableError, match="plugin of backend 'broken'.*boom"):
        ua.Amp("broken")


def test_misspelt_hook_is_found(register):
    class Misspelt:
        @hookimpl
        def unifiedamp_backnd(self):
            return None

    register(mine=Misspelt())
    with pytest.raises(ua.BackendUnavailableError, match="unifiedamp_backnd"):
        ua.Amp("mine")


def test_several_frameworks_and_none_named(register, monkeypatch):
    monkeypatch.delenv("UNIFIEDAMP_BACKEND", raising=False)
    register(one=Registered(), two=Registered())
    with pytest.raises(ua.ConfigError, match=r"several frameworks are installed \(one, two\).*UNIFIEDAMP_BACKEND"):
        ua.Amp()


def test_no_framework_at_all(register, monkeypatch):
    monkeypatch.delenv("UNIFIEDAMP_BACKEND", raising=False)
    register(one=Registered("no_such_framework"))
    with pytest.raises(ua.ConfigError, match="no framework is installed.*pip install mine"):
        ua.Amp()


def test_observer_with_a_misspelt_hook_is_refused():
    class Observer:
        def on_step_skiped(self, state):
            """Misspelt."""

    with pytest.raises(ua.ConfigError, match="did you mean 'on_step_skipped'"):
        plugins.add_observer(None, Observer())
    with pytest.raises(ua.ConfigError, match="has none of the hooks"):
        plugins.add_observer(None, object())


def test_a_folder_of_the_frameworks_name_is_no_framework(register, tmp_path, monkeypatch):
    (tmp_path / "notaframework").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    register(mine=Registered("notaframework"))
    info = ua.available_backends()["mine"]
    assert not info.installed
    assert "notaframework is not installed" in info.reason
    with pytest.raises(ua.BackendUnavailableError, match="pip install mine"):
        ua.Amp("mine")
