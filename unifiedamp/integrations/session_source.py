"""The session of a trainer: the user's own, or one that is made once the trainer has its device."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ..errors import ConfigError, StepOrderError, UnsupportedError, WrongObjectError, nearest
from ..policy import Policy
from ..session import Amp

NO_SCHEDULE = "a trainer takes one policy, and a schedule is for loops of your own and for Keras's fit"


class SessionSource:
    """A session, or the settings of one.

    Args:
        where: the integration, for messages.
        session: an ``Amp``; or the policy of one, or None for its default.
        settings: arguments of ``Amp``, unless it is given.

    Raises:
        WrongObjectError: neither a session nor a policy, or a session of another backend than torch.
        ConfigError: settings beside a session, unknown ones, or ones that are the trainer's own.
    """

    def __init__(self, where: str, session: Amp | Policy | str | None, settings: dict[str, Any]) -> None:
        self._where = where
        self._amp: Amp | None = None
        self._settings = settings
        if isinstance(session, Amp):
            _refuse_beside(where, settings)
            self._amp = check_session(where, session)
        elif session is None or isinstance(session, (str, Policy)):
            self._policy = Policy.parse(session) if isinstance(session, str) else session
            _check_settings(where, settings)
        else:
            raise WrongObjectError(f"{where}: expected a ua.Amp or a policy, got {type(session).__name__}")

    @property
    def amp(self) -> Amp:
        """The session.

        Raises:
            StepOrderError: it is not made yet.
        """
        if self._amp is None:
            raise StepOrderError(
                f"{self._where}: its session is made when the trainer has its device, and that is not yet; "
                f"pass one of yours, {self._where}(ua.Amp('torch', ...)), to use it before"
            )
        return self._amp

    @property
    def policy(self) -> Policy | None:
        """The policy; None while it is not known."""
        return self._policy if self._amp is None else self._amp.policy

    def begin(self, device: torch.device | None) -> Amp:
        """Return the session, made on ``device`` where the trainer names one.

        Raises:
            ConfigError: the session is on another device than the trainer.
        """
        if self._amp is None:
            name = None if device is None else str(device)
            self._amp = Amp("torch", self._policy, device=name, **self._settings)
        elif device is not None:
            check_device(self._where, self._amp, device)
        return self._amp


def check_session(where: str, amp: Amp) -> Amp:
    """Return a session that a trainer on torch can use.

    Raises:
        WrongObjectError: it is of another backend.
        ConfigError: it accumulates by itself.
        UnsupportedError: it has a schedule.
    """
    interop = amp.backend.interop
    if not (interop and hasattr(interop, "host_loops")):
        raise WrongObjectError(
            f"{where}: it trains torch modules, and this session's backend is {amp.backend.name!r}; "
            "pass ua.Amp('torch', ...)"
        )
    if amp.backend.spec.accumulate_steps > 1:
        raise ConfigError(
            f"{where}: the session has accumulate_steps={amp.backend.spec.accumulate_steps}, and the trainer "
            "accumulates gradients by itself; leave it out, and use the trainer's own argument"
        )
    if amp.schedule is not None:
        raise UnsupportedError(f"{where}: {NO_SCHEDULE}; pass a session with one policy")
    return amp


def check_device(where: str, amp: Amp, device: torch.device) -> None:
    """Refuse a session on another device than the trainer's.

    Raises:
        ConfigError: naming both.
    """
    mine = torch.device(amp.backend.device.name)
    if (mine.type, mine.index or 0) != (device.type, device.index or 0):
        raise ConfigError(
            f"{where}: the session is on {str(mine)!r}, the trainer on {str(device)!r}; pass "
            f"ua.Amp('torch', ..., device={str(device)!r}), or {str(amp.policy.replace(loss_scale=None))!r} instead of "
            "a session: one is then made on the trainer's device, in each process"
        )


def _refuse_beside(where: str, settings: dict[str, Any]) -> None:
    if settings:
        raise ConfigError(
            f"{where}: {', '.join(settings)} beside a session: settings are the session's own, "
            f"ua.Amp('torch', ..., {next(iter(settings))}=...)"
        )


def _check_settings(where: str, settings: dict[str, Any]) -> None:
    backend = settings.pop("backend", None)
    if backend not in (None, "torch"):
        raise WrongObjectError(f"{where}: it trains torch modules; backend={backend!r} cannot be used here")
    known = [name for name in inspect.signature(Amp).parameters if name not in ("backend", "policy")]
    own = {"device": "the trainer chooses the device", "accumulate_steps": "the trainer accumulates gradients"}
    for name in settings:
        if name in ("schedule", "total_steps"):
            raise UnsupportedError(f"{where}: {NO_SCHEDULE}; leave {name} out")
        if name in own:
            raise ConfigError(f"{where}: {name} cannot be set here: {own[name]} by its own arguments")
        if name not in known:
            raise ConfigError(f"{where}: no setting {name!r}{nearest(name, known)}")


def refuse_strategy(where: str, name: str, known: str) -> None:
    """Refuse a way of distributing that the session cannot follow.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(f"{where}: {name} cannot be used with a session of unifiedamp; use {known}")
