"""Discovery: one backend is loaded by name, a broken one harms nobody, and errors say how to install."""

from importlib.metadata import EntryPoint

import pytest

import unifiedamp as ua
from unifiedamp.backend import BackendPlugin, hookimpl
from unifiedamp.config import plugins
from unifiedamp.training.observers import add_observer

GROUP = plugins.GROUP


class Registered:
    """Stands in for a module that an entry point names."""

    def __init__(self, framework="json", load=None, error=None, **more):
        self.framework, self.load, self.error, self.more = framework, load, error, more

    @hookimpl
    def unifiedamp_backend(self):
        if self.error:
            raise self.error
        return BackendPlugin(
            "mine", self.framework, ("no-such-distribution",), "pip install mine", self.load, **self.more
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


@pytest.mark.parametrize(
    ("word", "meant"),
    [("tf", "two"), ("TF", "two"), ("keras", "two"), ("kears", "two"), ("pytorch", "one"), ("onne", "one")],
)
def test_other_words_for_a_backend_get_it_suggested(register, word, meant):
    register(one=Registered(aliases=("pytorch",)), two=Registered(aliases=("tf", "keras")))
    for refused in (lambda: ua.Amp(word), lambda: ua.Amp("one", backend_options={word: {}})):
        with pytest.raises(ua.ConfigError, match=f"did you mean '{meant}'"):
            refused()


def test_our_own_are_known_by_their_usual_words():
    wanted = {"tf": "tensorflow", "keras": "tensorflow", "pytorch": "torch", "gluon": "mxnet"}
    for word, name in wanted.items():
        if name in plugins.backend_entry_points():
            with pytest.raises(ua.BackendNotFoundError, match=f"did you mean '{name}'"):
                ua.Amp(word)


def test_the_likely_one_is_suggested(register, monkeypatch):
    monkeypatch.delenv("UNIFIEDAMP_BACKEND", raising=False)
    register(a=Registered(place=3), b=Registered(), c=Registered(place=1))
    with pytest.raises(ua.ConfigError, match=r"installed \(c, a, b\).*write Amp\('c'\)"):
        ua.Amp()


def test_a_plugin_that_exits_is_a_broken_plugin(register):
    register(mine=Registered(error=SystemExit(3)))
    with pytest.raises(ua.BackendUnavailableError, match=r"'mine'.*it ended the program \(exit code 3\)"):
        ua.Amp("mine")


def test_what_a_plugin_prints_is_not_on_standard_output(register, capsys):
    class Prints(Registered):
        @hookimpl
        def unifiedamp_backend(self):
            print("noise")
            return super().unifiedamp_backend()

    register(mine=Prints())
    assert plugins.load_plugin("mine").name == "mine"
    assert capsys.readouterr().out == ""


def test_a_hook_with_other_arguments_is_one_line(register):
    class Config(Registered):
        @hookimpl
        def unifiedamp_backend(self, config):
            return super().unifiedamp_backend()

    register(mine=Config())
    with pytest.raises(ua.BackendUnavailableError, match="plugin of backend 'mine'.*'config'") as caught:
        ua.Amp("mine")
    assert "\n" not in str(caught.value)


def test_an_observer_with_other_arguments_is_refused():
    class Observer:
        def on_scale_changed(self, before, now):
            """``now`` is no argument of this hook."""

    with pytest.raises(ua.ConfigError, match=r"on_scale_changed takes 'now', and is given before, after, state") as one:
        add_observer(None, Observer())
    assert "\n" not in str(one.value)
    Observer.on_scale_changed = 3
    with pytest.raises(ua.ConfigError, match="must be a method"):
        add_observer(None, Observer())


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
        add_observer(None, Observer())
    with pytest.raises(ua.ConfigError, match="has none of the hooks"):
        add_observer(None, object())


def test_a_folder_of_the_frameworks_name_is_no_framework(register, tmp_path, monkeypatch):
    (tmp_path / "notaframework").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    register(mine=Registered("notaframework"))
    info = ua.available_backends()["mine"]
    assert not info.installed
    assert "notaframework is not installed" in info.reason
    with pytest.raises(ua.BackendUnavailableError, match="pip install mine"):
        ua.Amp("mine")
