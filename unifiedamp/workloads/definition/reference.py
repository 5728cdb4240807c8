"""``path.py[:name]``: the file of a workload, imported as Python would import it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ...backend.launch import read_launch
from ...errors import ConfigError, nearest
from ...output.files import reason


@dataclass(frozen=True)
class Reference:
    """A workload on the command line.

    Attributes:
        path: the Python file.
        name: what it calls the workload; None where the file alone is named.
    """

    path: Path
    name: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.name is None else f"{self.path}:{self.name}"


def is_reference(text: str) -> bool:
    """Return whether a word on the command line names a Python file."""
    file, colon, name = text.rpartition(":")
    return text.endswith(".py") or (bool(colon) and file.endswith(".py") and "/" not in name)


def parse_reference(text: str, folder: Path = Path()) -> Reference:
    """Return what ``path.py`` or ``path.py:name`` refers to.

    Args:
        text: the words.
        folder: relative paths start here.

    Raises:
        ConfigError: it is neither, or there is no such file.
    """
    file, _, name = (text, "", "") if text.endswith(".py") else text.rpartition(":")
    if not is_reference(text) or (name and not name.isidentifier()) or (text.endswith(":") and not name):
        raise ConfigError(f"{text!r} names no workload: write FILE.py or FILE.py:NAME")
    try:
        path = folder / Path(file).expanduser()
        _check_there(path)
    except ConfigError:
        raise
    except (ValueError, RuntimeError) as error:  # a null byte; ~ of a user that is not there
        raise ConfigError(f"{text!r} names no file: {error}") from None
    return Reference(path, name or None)


def _check_there(path: Path) -> None:
    """Check that a file can be opened.

    Raises:
        ConfigError: it cannot; names the nearest in its folder.
    """
    try:
        with path.open("rb"):
            return
    except FileNotFoundError:
        others = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ConfigError(f"there is no file {path}{nearest(path.name, others)}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from error


def import_file(path: Path) -> ModuleType:
    """Import a file; its folder is on the path, as in ``python FILE.py``. A module of a package is imported as one.

    Raises:
        ConfigError: it is not Python, or raises when it is imported.
    """
    path = path.resolve()
    _check_syntax(path)
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        folder, parts = folder.parent, [folder.name, *parts]
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(".".join(parts)) if len(parts) > 1 else _by_path(path)
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        launch = read_launch(os.environ)
        if launch is not None and launch.role != "worker":
            raise  # MXNet serves in its import, and exits then
        raise ConfigError(
            f"{path.name} ends the process when it is imported (exit code {error.code}): put what runs behind "
            '`if __name__ == "__main__":`'
        ) from error
    except BaseException as error:
        raise ConfigError(f"{path.name}{_line(error, path)} cannot be imported: {_said(error)}") from error


def _by_path(path: Path) -> ModuleType:
    """Import a file that belongs to no package, under its own name where no other module has it."""
    name = path.stem
    there = sys.modules.get(name)
    if there is not None:
        if getattr(there, "__file__", None) == str(path):
            return there
        name = f"_workload_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _check_syntax(path: Path) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ConfigError(f"{path.name}:{error.lineno}: not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; a parser that gave up
        raise ConfigError(f"{path.name} is not valid Python: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from error


def _line(error: BaseException, path: Path) -> str:
    """Return the last line of the file that an exception came through, as ``:12``."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f":{lines[-1]}" if lines else ""


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
