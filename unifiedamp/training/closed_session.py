"""What a closed session answers: its state can be read, and every call that works on models or steps is refused."""

from __future__ import annotations

import functools
from typing import Any, NoReturn, Protocol

from ..errors import StepOrderError
from .held_optimizers import release

REFUSED = (
    "scope", "prepare", "compile", "load_state_dict", "observe", "record", "forecast", "to_native", "prefetch",
    "master_weights", "load_master_weights", "convert_model", "autocast", "inference", "scale_loss", "backward",
    "unscale", "clip_grad_norm", "clip_grad_value", "gradients", "step", "discard_step", "skip_if", "ema",
)  # fmt: skip
"""The methods of ``Amp`` that a closed session refuses."""


class Closable(Protocol):
    """Compiled steps: they refuse to run once they are closed."""

    closed: bool


class Listening(Protocol):
    """A recorder or a forecast."""

    def stop(self) -> None:
        """End it. Idempotent."""


def refuse(call: str, *_: Any, **__: Any) -> NoReturn:
    """Refuse ``call``.

    Raises:
        StepOrderError: always.
    """
    raise StepOrderError(
        f"amp.{call}: this session was closed by amp.close(), and took what it had attached to models and optimizers "
        "back; make a new ua.Amp(...) and prepare them again (amp.state_dict() can still be read, and loaded there)"
    )


def is_closed(session: object) -> bool:
    """Return whether the session's methods were replaced by refusals."""
    return REFUSED[0] in vars(session)


def close_session(session: Any, compiled: Closable, listener: Listening | None) -> None:
    """See ``Amp.close``; refusals take the place of methods, so that an open session pays for no check."""
    if compiled.closed:
        return
    if listener is not None:
        listener.stop()
    session.averages.close()
    compiled.closed = True
    vars(session).update({call: functools.partial(refuse, call) for call in REFUSED})
    session.backend.close()
    release(session.backend.spec)
