"""Keras scripts of many shapes, migrated, end with the weights that they ended with; with their flag on and off."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")
import numpy as np  # noqa: E402
from migrating import identifiers, migrated  # noqa: E402
from test_keras import KERAS_2, OLD_NAMES, seed  # noqa: E402

OLD = Path(__file__).parent / "old"
NAMES = sorted(path.stem for path in (OLD / "keras").glob("*.py"))
REWRITES = sorted(path.stem for path in (OLD / "rewrite").glob("*.py"))
# Float32 sums are put together in another order where a graph is; five steps carry that on.
SAME = {"rtol": 2e-4, "atol": 2e-5}

pytestmark = [
    pytest.mark.usefixtures("policy_put_back"),
    pytest.mark.filterwarnings("ignore::unifiedamp.errors.PolicyWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def natively(text: str) -> str:
    """Return an old text as the TensorFlow that is here wants it: what was renamed, by its new name."""
    text = text.replace("mixed_precision.experimental.", "mixed_precision.").replace(
        ".set_policy(", ".set_global_policy("
    )
    if not KERAS_2:  # Keras 3's optimizer takes scaled gradients
        text = re.sub(r"\b([\w.]+)\.get_scaled_loss\(", r"\1.scale_loss(", text)
        text = re.sub(r"\b[\w.]+\.get_unscaled_gradients\((.*)\)$", r"\1", text, flags=re.MULTILINE)
    return text


def weights(text: str, name: str, flag: bool | None) -> list[Any]:
    tf.keras.mixed_precision.set_global_policy("float32")
    seed()
    space: dict[str, Any] = {"__name__": name}
    exec(compile(text, name, "exec"), space)
    return list(space["main"](*([] if flag is None else [flag])))


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_of_the_old_code(name):
    text = (OLD / "keras" / f"{name}.py").read_text("utf-8")
    compare(text, natively(text), new_text(text, name), name)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_the_policy_of_the_program_stays(policy, flag):
    """Another file has set it, before this one's code runs; the flag chooses the loss scale alone."""
    text = (OLD / "keras" / "policy_elsewhere.py").read_text("utf-8")
    of_program = f"import tensorflow as tf\ntf.keras.mixed_precision.set_global_policy({policy!r})\n"
    ran = [of_program + each for each in (natively(text), new_text(text, "policy_elsewhere"))]
    old, new = (weights(each, "policy_elsewhere", flag) for each in ran)
    for was, now in zip(old, new, strict=True):
        np.testing.assert_allclose(now, was, **SAME)


@pytest.mark.parametrize("name", REWRITES)
def test_the_weights_are_those_without_the_rewrite(name):
    """Without a GPU the rewrite converts nothing, and the scale, a power of two, changes no digit."""
    text = (OLD / "rewrite" / f"{name}.py").read_text("utf-8")
    plain = re.sub(r"tf\.[\w.]*enable_mixed_precision_graph_rewrite\(", "_the_same(", text)
    plain += "\n\ndef _the_same(opt, loss_scale=None):\n    return opt\n"
    compare(text, plain, new_text(text, name).replace('"mixed_float16"', '"float32"'), name)


def new_text(text: str, name: str) -> str:
    done = migrated(text, f"{name}.py")
    assert done.changed, done.findings
    new = done.after.decode()
    assert not identifiers(new) & (OLD_NAMES - {"set_global_policy"})
    return new


def compare(text: str, before: str, new: str, name: str) -> None:
    takes_flag = "use_amp" in inspect.signature(_main(text)).parameters
    for flag in (True, False) if takes_flag else (None,):
        old = weights(before, name, flag)
        found = weights(new, name, flag)
        assert len(old) == len(found)
        for was, now in zip(old, found, strict=True):
            np.testing.assert_allclose(now, was, **SAME)


def _main(text: str) -> Any:
    source = text[text.index("def main(") :].split("\n", 1)[0] + "\n    pass\n"
    space: dict[str, Any] = {}
    exec(source, space)
    return space["main"]
