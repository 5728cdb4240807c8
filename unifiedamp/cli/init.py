"""``unifiedamp init``: writes a workload to start from."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path
from typing import Annotated

import typer

from ..config import environment, plugins
from ..errors import ConfigError
from ..output.files import check_file, write_whole
from . import choices
from .show import console, print_json, say
from .streams import is_quiet


def init(
    file: Annotated[Path, typer.Argument(help="The Python file to write.")] = Path("my_model.py"),
    backend: Annotated[str | None, typer.Option(help="torch, tensorflow, mxnet.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of sentences.")] = False,
) -> None:
    """Write a commented workload that runs as it is: a small model, its optimizer, loss and batches.

    Example: unifiedamp init my_model.py --backend torch

    Exit code 0: the file is written; 2: it is there already, or cannot be written.
    """
    _check_name(file)
    if file.exists():
        raise ConfigError(f"{file} is there already: name another file")
    check_file(file, "FILE")
    name = choices.one_backend(backend or environment.text_of("backend"))
    write_whole(file, starter(name))
    lines = (
        f"unifiedamp train {file}",
        f"unifiedamp compare {file} --policies float32,mixed_bfloat16,mixed_float16",
        f"unifiedamp tune {file}",
    )
    if json:
        print_json({"schema": "unifiedamp-init", "version": 1, "file": str(file), "backend": name, "next": list(lines)})
        return
    out = console()
    say(out, f"{file} is written. Put your model and data into it; it runs as it is:")
    for line in () if is_quiet() else lines:
        say(out, f"  {line}")


def _check_name(file: Path) -> None:
    if file.suffix != ".py":
        raise ConfigError(f"{file}: a workload is a Python file; name it {file.stem or 'my_model'}.py")
    if not file.stem.isidentifier() or keyword.iskeyword(file.stem):
        raise ConfigError(f"{file}: Python cannot import a file of this name; use letters, digits and underscores")


def starter(backend: str) -> str:
    """Return the text of a backend's workload to start from.

    Raises:
        ConfigError: the backend has none.
    """
    plugin = plugins.load_plugin(backend)
    spec = importlib.util.find_spec(plugin.starter) if plugin.starter else None
    if spec is None or spec.origin is None:
        raise ConfigError(f"backend {backend!r} brings no workload to start from; write one by docs/workloads.md")
    return Path(spec.origin).read_text(encoding="utf-8")
