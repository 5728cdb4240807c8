"""Files that are no workload, or not a whole one: one line that names the part, before any training."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.workloads.definition.loading import define, make
from unifiedamp.workloads.definition.reference import parse_reference
from unifiedamp.workloads.definition.settings import read_assignments
from unifiedamp.workloads.training.batches import elements, samples, window_count, windows
from unifiedamp.workloads.training.evaluation import evaluate

_numbers = itertools.count()
PARTS = {
    "make_model": "def make_model(self): return 'model'",
    "make_optimizer": "def make_optimizer(self, model): return 'optimizer'",
    "loss": "def loss(self, model, batch): return 0.0",
    "batches": "def batches(self, epoch): return [1, 2, 3]",
}


def a_class(name="Mine", **changed):
    """The text of a class with these parts changed; None leaves one out."""
    body = [text for text in {**PARTS, **changed}.values() if text is not None]
    return "\n    ".join([f"class {name}:", *body])


@pytest.fixture
def loaded(tmp_path):
    """Write a file, and return what is loaded from it."""

    def load(text, given=(), name="", backend="toy"):
        path = tmp_path / f"bad_{next(_numbers)}.py"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        definition = define(parse_reference(f"{path}{name}"))
        return make(definition, read_assignments(given), backend)

    return load


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_part_is_named(loaded, part):
    with pytest.raises(ua.ConfigError, match=rf"bad_\d+.py:Mine lacks {part}\("):
        loaded(a_class(**{part: None}))
    with pytest.raises(ua.ConfigError, match=rf"bad_\d+.py:Mine lacks {part}\("):
        loaded(a_class(**{part: None}), name=":Mine")
    with pytest.raises(ua.ConfigError, match=rf"lacks {part}\("):
        loaded(a_class(**{part: f"{part} = None"}))


def test_a_missing_function_of_a_module_is_named(loaded):
    text = "\n".join(text.replace("self, ", "").replace("self", "") for text in PARTS.values())
    assert loaded(text).batches(0) == [1, 2, 3]
    with pytest.raises(ua.ConfigError, match=r"bad_\d+.py lacks loss\(model, batch\): every workload has make_model"):
        loaded(text.replace("def loss", "def the_loss"))


@pytest.mark.parametrize(
    ("part", "text", "said"),
    [
        (
            "make_model",
            "def make_model(self, shape): return 1",
            r"make_model is called as make_model\(\), but it takes",
        ),
        ("make_optimizer", "def make_optimizer(self): return 1", r"called as make_optimizer\(model\), but it takes"),
        ("loss", "def loss(self, model, x, y): return 1", r"loss\(model, batch\), but it takes \(self, model, x, y\)"),
        ("loss", "def loss(self, model, batch, *, w): return 1", r"loss is called as loss\(model, batch\)"),
        ("loss", "async def loss(self, model, batch): return 1", "loss is asynchronous"),
        ("batches", "def batches(self): return []", r"batches is called as batches\(epoch\)"),
        ("batches", "@staticmethod\n    def batches(): return []", r"batches is called as batches\(epoch\)"),
        ("evaluate", "def evaluate(self, model): return 1", r"evaluate is called as evaluate\(amp, model\)"),
        ("evaluate", "evaluate = 3", "evaluate must be a function, got int"),
        (
            "export_weights",
            "def export_weights(self, amp, model): return {}",
            "has export_weights but no import_weights",
        ),
        ("backends", "backends = 3", "backends must be a tuple of names, got 3"),
        ("may_change", "may_change = (1,)", "may_change must be a tuple of names"),
    ],
)
def test_a_wrong_part_is_named(loaded, part, text, said):
    with pytest.raises(ua.ConfigError, match=said):
        loaded(a_class(**{part: text}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (", r"bad_\d+.py:1: not valid Python: '\(' was never closed"),
        (b"\x00\x01", "not valid Python"),
        (b"\xff\xfe{}", "not valid Python"),
        (b"\x89PNG\r\n", "not valid Python"),
        ("\n\nimport no_such_module_at_all", r"bad_\d+.py:3 cannot be imported: ModuleNotFoundError"),
        ("def f():\n    raise ValueError('no data')\nf()", r"bad_\d+.py:2 cannot be imported: ValueError: no data"),
        ("import sys\nsys.exit(3)", r"ends the process when it is imported \(exit code 3\): put what runs behind"),
        ("raise BaseException", "cannot be imported: BaseException"),
        ("", r"holds no workload: a class, object or module with make_model.*unifiedamp init"),
        ("x = 1", "holds no workload"),
    ],
)
def test_a_file_that_cannot_be_imported(loaded, text, said):
    with pytest.raises(ua.ConfigError, match=said) as caught:
        loaded(text)
    assert "\n" not in str(caught.value)


def test_several_workloads_are_named_and_one_can_be_chosen(loaded):
    text = a_class("One") + "\n" + a_class("Two", batches="def batches(self, epoch): return [2]")
    with pytest.raises(ua.ConfigError, match=r"several workloads: name one of them, bad_\d+.py:One or bad_\d+.py:Two"):
        loaded(text)
    assert loaded(text, name=":Two").batches(0) == [2]
    assert loaded(text + "\nworkload = Two").batches(0) == [2]
    with pytest.raises(ua.ConfigError, match="has no 'Tow'; did you mean 'Two'"):
        loaded(text, name=":Tow")
    assert loaded(a_class("One") + "\nalias = One").batches(0) == [1, 2, 3]


def test_imported_classes_are_no_candidates(loaded, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a_library_of_bases.py").write_text(a_class("Base"))
    text = "from a_library_of_bases import Base\nclass Mine(Base):\n    def batches(self, epoch): return [7]\n"
    assert loaded(text).batches(0) == [7]


FORMS = {
    "a class": a_class(__init__="def __init__(self, size: int = 3): self.size = size",
                       batches="def batches(self, epoch): return [self.size]"),
    "a function": a_class("_Hidden", __init__="def __init__(self, size): self.size = size",
                          batches="def batches(self, epoch): return [self.size]")
    + "\ndef workload(size: int = 3): return _Hidden(size)",
    "an object": "import dataclasses\n@dataclasses.dataclass\n"
    + a_class("_Hidden", size="size: int = 3", batches="def batches(self, epoch): return [self.size]")
    + "\nmine = _Hidden()",
    "a module": "\n".join(text.replace("self, ", "").replace("self", "") for text in PARTS.values())
    + "\ndef batches(epoch, size: int = 3): return [size]",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_takes_settings(loaded, form):
    assert loaded(FORMS[form]).batches(0) == [3]
    assert loaded(FORMS[form], ["size=5"]).batches(0) == [5]
    assert loaded(FORMS[form], ["size=5"]).settings == {"size": 5}
    with pytest.raises(ua.ConfigError, match=r"has no setting 'sise'; did you mean 'size'.*\(settings: size\)"):
        loaded(FORMS[form], ["sise=5"])
    with pytest.raises(ua.ConfigError, match=r"setting 'size': .*integer.*\(got '5.5'\)"):
        loaded(FORMS[form], ["size=5.5"])


def test_values_have_the_types_that_the_settings_say(loaded):
    init = (
        "def __init__(self, rate: float = 0.1, on: bool = False, name: str = 'a', few: 'int | None' = 3, "
        "sizes: tuple[int, ...] = (1,), anything=None, *rest, **more): "
        "self.all = (rate, on, name, few, sizes, anything)"
    )
    text = a_class(__init__=init, batches="def batches(self, epoch): return [self.all]")
    words = ["rate=1", "on=true", "name=5", "few=none", "sizes=[1, 2]", "anything=x=y"]
    assert loaded(text, words).batches(0) == [(1.0, True, "5", None, (1, 2), "x=y")]
    for wrong in ("rate=fast", "on=perhaps", "few=1.5", "sizes=3", "more=1", "rest=1"):
        with pytest.raises(ua.ConfigError, match=wrong.partition("=")[0]):
            loaded(text, [wrong])


def test_a_setting_without_a_default_must_be_given(loaded):
    text = a_class(__init__="def __init__(self, folder: str): self.folder = folder")
    with pytest.raises(ua.ConfigError, match="'folder' has no default; give it: --set folder=VALUE"):
        loaded(text)
    loaded(text, ["folder=/data"])


def test_a_backend_that_is_not_supported_is_refused(loaded):
    text = a_class(backends="backends = ('torch', 'mxnet')")
    with pytest.raises(ua.UnsupportedError, match=r"does not support backend 'toy' \(its backends: torch, mxnet\)"):
        loaded(text)
    loaded(text, backend="mxnet")


def test_the_backend_is_given_where_it_is_asked_for(loaded):
    text = a_class(__init__="def __init__(self, backend): self.backend = backend",
                   batches="def batches(self, epoch): return [self.backend]")  # fmt: skip
    assert loaded(text, backend="toy").batches(0) == ["toy"]
    with pytest.raises(ua.ConfigError, match="no setting 'backend'"):
        loaded(text, ["backend=torch"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("return None", r"batches returned nothing \(None\)"),
        ("return 3", r"batches\(0\) must return an iterable of batches, got int"),
        ("return {'x': 1}", "iterable of batches, got dict"),
        ("return 'abc'", "iterable of batches, got str"),
        ("return []", r"batches\(0\) yields nothing: the data set is empty"),
        ("return [1]", r"batches\(0\) yields 1, fewer than one step takes \(accumulate_steps 2\)"),
    ],
)
def test_wrong_batches(loaded, text, said):
    workload = loaded(a_class(batches=f"def batches(self, epoch): {text}"))
    with pytest.raises(ua.ConfigError, match=said):
        list(windows(workload, 0, 2))


def test_batches_that_are_used_up(loaded):
    text = a_class(__init__="def __init__(self): self.all = iter([1, 2])",
                   batches="def batches(self, epoch): return self.all")  # fmt: skip
    workload = loaded(text)
    assert list(windows(workload, 0, 1)) == [[1], [2]]
    with pytest.raises(ua.ConfigError, match=r"batches\(1\) yields nothing, batches\(0\) did: return a new iterable"):
        list(windows(workload, 1, 1))


def test_batches_that_end_before_the_place_of_a_checkpoint(loaded):
    workload = loaded(a_class())
    assert list(windows(workload, 0, 1, first=2)) == [[3]]
    assert list(windows(workload, 0, 1, first=3)) == []
    with pytest.raises(ua.CheckpointError, match="stops after batch 4 of epoch 1, in which .* has 3"):
        list(windows(workload, 0, 1, first=4))


def test_a_generator_is_closed_when_it_is_left(loaded, tmp_path):
    left = f"import pathlib; pathlib.Path({str(tmp_path / 'closed')!r}).touch()"
    body = f"\n        try:\n            yield 1\n            yield 2\n        finally:\n            {left}"
    workload = loaded(a_class(batches=f"def batches(self, epoch):{body}"))
    each = windows(workload, 0, 1)
    assert next(each) == [1]
    each.close()
    assert (tmp_path / "closed").exists()
    assert window_count(workload, 0, 1) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("None", "evaluate returned nothing"),
        ("'good'", "'score' is str"),
        ("[1, 2]", "'score' is list"),
        ("{1: 2.0}", "name its scores with text, got 1"),
        ("{'accuracy': 98.0}", "accuracy must be from 0 to 1, got 98"),
        ("{'a': object()}", "'a' is object"),
    ],
)
def test_wrong_scores(loaded, value, said):
    workload = loaded(a_class(evaluate=f"def evaluate(self, amp, model): return {value}"))
    with pytest.raises(ua.ConfigError, match=said):
        evaluate(workload, SimpleNamespace(to_numpy=np.asarray), None)


def test_scores(loaded):
    amp = SimpleNamespace(to_numpy=np.asarray)
    assert evaluate(loaded(a_class()), amp, None) == {}
    one = loaded(a_class(evaluate="def evaluate(self, amp, model): return 3"))
    assert evaluate(one, amp, None) == {"score": 3.0}
    text = "def evaluate(self, amp, model):\n        import numpy; return {'f1': numpy.float32(0.5), 'bleu': 30}"
    assert evaluate(loaded(a_class(evaluate=text)), amp, None) == {"f1": 0.5, "bleu": 30.0}


def test_what_a_batch_holds():
    x, y = np.zeros((6, 4)), np.zeros(6)
    for batch in ((x, y), [x, y], {"x": x, "y": y}, {"deep": [("text", x), y]}, x):
        assert samples(batch) == 6
        assert elements(batch) == 24
    for batch in ("text", 3, None, [], np.zeros(())):
        assert samples(batch) == elements(batch) == 1
