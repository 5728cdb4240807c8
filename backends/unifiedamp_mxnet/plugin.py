"""The entry point of the mxnet backend: light facts, no framework."""

import os
import sys

from unifiedamp.backend import Backend, BackendPlugin, hookimpl

from .distributed.heartbeats import begin_heartbeats

FLAG: dict[str, object] = {"type": "boolean"}
OPERATORS: dict[str, object] = {"type": "integer", "minimum": 0}
OPTIONS: dict[str, dict[str, object]] = {
    "static_alloc": {**FLAG, "default": True, "description": "hybridize: allocate memory once."},
    "static_shape": {**FLAG, "default": True, "description": "hybridize: shapes do not change from call to call."},
    "inline_limit": {**OPERATORS, "default": 2, "description": "hybridize: inline graphs of up to N operators."},
    "forward_bulk_size": {**OPERATORS, "description": "hybridize: operators of a forward segment."},
    "backward_bulk_size": {**OPERATORS, "description": "hybridize: operators of a backward segment."},
    "layout_optimization": {**FLAG, "description": "MXNet 2: choose the layout of convolutions by the device."},
    "emulate": {**FLAG, "default": False, "description": "Run the policy's numerics on a CPU, as emulate=true in it."},
}
"""``backend_options.mxnet``."""


def _load() -> type[Backend]:
    begin_heartbeats(os.environ)
    from .backend import MXNetBackend

    return MXNetBackend


def unavailable(python: tuple[int, ...]) -> str:
    """Return why MXNet cannot run under a version of Python; empty where it can."""
    if python < (3, 13):
        return ""
    return (
        f"MXNet does not run under Python {python[0]}.{python[1]}: it needs numpy 1, which has no release for Python "
        "3.13 and newer; use Python 3.11 or 3.12"
    )


def import_hint(error: BaseException) -> str:
    """Return what to do about an error at the import of MXNet; empty for an unknown one."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "distutils":
        return "Python 3.12 no longer has distutils, and setuptools brings it back: pip install setuptools"
    return ""


@hookimpl
def unifiedamp_backend() -> BackendPlugin:
    """Return the backend's description."""
    return BackendPlugin(
        "mxnet",
        "mxnet",
        ("mxnet", "mxnet-cu117", "mxnet-cu112"),
        "pip install 'mxnet>=1.9.1' 'numpy<2'",
        _load,
        "unifiedamp_mxnet.conformance.harness",
        starter="unifiedamp_mxnet.starter",
        aliases=("gluon", "mx"),
        place=3,
        options=OPTIONS,
        unavailable=unavailable(sys.version_info[:2]),
        import_hint=import_hint,
    )
