"""What a closed session answers: its state can be read, and every call that works on models or steps is refused."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

from ..errors import StepOrderError

REFUSED = (
    "scope", "prepare", "compile", "load_state_dict", "observe", "record", "to_native", "prefetch", "master_weights",
    "load_master_weights", "convert_model", "autocast", "inference", "scale_loss", "backward", "unscale",
    "clip_grad_norm", "clip_grad_value", "gradients", "step", "discard_step", "ema",
)  # fmt: skip
"""The methods of ``Amp`` that a closed session refuses."""


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


def refuse_calls(session: object) -> None:
    """Put refusals in the place of the session's methods, so that an open session pays for no check."""
    vars(session).update({call: functools.partial(refuse, call) for call in REFUSED})
