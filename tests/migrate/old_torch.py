"""Runs listings of Apex and ``torch.cuda.amp`` on a CPU: before through stand-ins, and after ``migrate``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import unifiedamp as ua

OLD = Path(__file__).parent / "old"
APEX = sorted(path.stem for path in (OLD / "apex").glob("*.py"))
TORCH = sorted(path.stem for path in (OLD / "torch_amp").glob("*.py"))


def text_of(api: str, name: str) -> str:
    return (OLD / api / f"{name}.py").read_text(encoding="utf-8")


def weights(text: str, flag: bool) -> list[float]:
    """Run a listing's ``train``; return the weights that it ends with."""
    space: dict[str, Any] = {"__name__": "listing"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, "listing", "exec"), space)
        return list(space["train"](flag))


def folder_weights(folder: Path, flag: bool) -> list[float]:
    """Import the folder's ``train.py`` and run it; forget its modules."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return list(importlib.import_module("train").train(flag))
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@contextlib.contextmanager
def apex_by_facade(monkeypatch: Any) -> Iterator[None]:
    """``import apex`` finds ``unifiedamp.compat.apex``, and a DistributedDataParallel for one process."""
    from unifiedamp.compat import apex as amp

    parallel = types.ModuleType("apex.parallel")
    parallel.DistributedDataParallel = lambda model, **_: model  # type: ignore[attr-defined]
    package = types.ModuleType("apex")
    package.amp, package.parallel = amp, parallel  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        for name, module in {"apex": package, "apex.amp": amp, "apex.parallel": parallel}.items():
            patch.setitem(sys.modules, name, module)
        yield


@contextlib.contextmanager
def apex_without_amp(monkeypatch: Any) -> Iterator[None]:
    """``apex`` as it is today: no ``amp`` in it."""
    with apex_by_facade(monkeypatch), monkeypatch.context() as patch:
        patch.delattr(sys.modules["apex"], "amp")
        patch.setitem(sys.modules, "apex.amp", None)
        yield


@contextlib.contextmanager
def torch_on_cpu(monkeypatch: Any) -> Iterator[None]:
    """``torch.cuda.amp`` turns itself off without a GPU: here it is torch's own, told that the device is the CPU."""
    scaler = _scaler_on_cpu(torch.amp.GradScaler)
    region = _region_on_cpu(torch.autocast)
    with monkeypatch.context() as patch:
        for module in (torch.cuda.amp, torch.amp, torch):
            patch.setattr(module, "GradScaler", scaler, raising=False)
            patch.setattr(module, "autocast", region)
        yield


def _scaler_on_cpu(scaler: Any) -> Any:
    def make(*args: Any, **options: Any) -> Any:
        options.pop("device", None)
        return scaler("cpu", *(arg for arg in args if not isinstance(arg, str)), **options)

    return make


def _region_on_cpu(region: Any) -> Any:
    def enter(*args: Any, enabled: bool = True, dtype: Any = torch.float16, **_: Any) -> Any:
        given = [arg for arg in args if isinstance(arg, bool)]
        return region("cpu", dtype=dtype, enabled=all([enabled, *given]))

    return enter


@contextlib.contextmanager
def sessions_on_cpu(monkeypatch: Any) -> Iterator[None]:
    """A session takes a GPU where there is one; the old code runs on the CPU here."""
    with monkeypatch.context() as patch:
        patch.setattr(ua, "Amp", functools.partial(_session, ua.Amp))
        yield


def _session(amp: Any, *args: Any, **options: Any) -> Any:
    return amp(*args, **options | {"device": "cpu"})
