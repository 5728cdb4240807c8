"""What the tests of the commands ask of this machine."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import unifiedamp as ua
from unifiedamp.workloads.configuration import Settings, read_settings, read_source

HERE = Path(__file__).parent
EXAMPLES = Path(ua.__file__).parents[1] / "examples"
CLASSIFIER = EXAMPLES / "image_classifier.py"
CONV, MLP = (EXAMPLES / "configs" / f"digits_{name}.toml" for name in ("conv", "mlp"))


def read_example(path: Path = CONV, out: Path | None = None, **options: Any) -> Settings:
    """The settings of a configuration of the example."""
    return read_settings(read_source(str(path)), out, **options)


@functools.cache
def installed() -> list[str]:
    infos = ua.available_backends()
    found = [name for name, info in infos.items() if info.installed]
    return [name for name in found if importlib.util.find_spec(f"examples.models.{name}_models")]


def a_mixed_policy(backend: str) -> str | None:
    """A mixed policy that runs here, if there is one."""
    answers = ua.available_backends()[backend].capabilities.policies
    return next((name for name in ("mixed_bfloat16", "mixed_float16") if answers[name]), None)


def mixed_policy(backend: str) -> str:
    """The same; without one, which only MXNet may be, the emulation of one."""
    policy = a_mixed_policy(backend)
    assert policy or backend == "mxnet"
    return policy or "mixed_bfloat16;emulate=true"
