"""How a session shows itself: its settings as text and as a table, read without asking the device for anything; and
what copying it means.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from ..errors import WrongObjectError
from ..notebook import table_html
from .closed_session import is_closed

T = TypeVar("T")


def session_text(session: Any) -> str:
    """Return the ``repr`` of a session: a call that makes the like, then what it holds."""
    settings = session_settings(session)
    if "backend" not in settings:
        return f"<{type(session).__name__}: not initialized>"
    shown = [f"{name}={value!r}" for name, value in settings.items() if name not in ("backend", "state")]
    state = f" {settings['state']}" if "state" in settings else ""
    return f"<{type(session).__name__}({settings['backend']!r}, {', '.join(shown)}){state}>"


def session_html(session: Any) -> str:
    """Return the same as an HTML table."""
    settings = session_settings(session) or {"state": "not initialized"}
    return table_html(type(session).__name__, settings.items())


def session_settings(session: Any) -> dict[str, Any]:
    """Return the settings in force and the models prepared; empty where the session could not be created."""
    backend = getattr(session, "backend", None)
    if backend is None:
        return {}
    spec = backend.spec
    settings: dict[str, Any] = {
        "backend": backend.name,
        "policy": str(session.policy),
        "device": backend.device.name,
        "loss_scale": str(session.loss_scale_settings),
        "accumulate_steps": spec.accumulate_steps,
        "compile": session.compile_mode,
    }
    if spec.schedule is not None:
        settings["schedule"] = str(spec.schedule)
    if spec.master_weights:
        settings["master_weights"] = True
    if spec.reduce_dtype is not None:
        settings["reduce_dtype"] = spec.reduce_dtype
    if session.tuning:
        settings["tuning"] = str(session.tuning)
    if models := getattr(session, "models", ()):
        settings["models"] = [type(model).__name__ for model in models]
    if is_closed(session):
        settings["state"] = "closed"
    return settings


def refuse_pickle(session: Any, _protocol: object = None) -> NoReturn:
    """Refuse to pickle a session.

    Raises:
        WrongObjectError: always.
    """
    raise WrongObjectError(
        f"{type(session).__name__}: a session cannot be pickled or sent to another process, because it belongs to the "
        "native models and optimizers that it prepared. Make another session with the same arguments; amp.state_dict() "
        "returns its state as plain values for amp.load_state_dict()"
    )


def same_session(session: T, _memo: object) -> T:
    """Return the session itself as its deep copy: the copy of a model that holds a session belongs to it as well."""
    return session
