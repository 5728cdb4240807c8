"""Policies over the course of a run: which one is in force from which iteration on.

A schedule maps counts of iterations, or percentages of all of them, to policies::

    PolicySchedule.of({0: "mixed_float8", "90%": "mixed_bfloat16"}, total_steps=10_000)

An iteration is one round of optimizer steps, counted from 0, skipped ones included: the policy at 9000 is in force from
the forward pass that follows 9000 iterations. Text joins the entries by ``|``::

    0: mixed_float8 | 9000: mixed_bfloat16
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ..errors import ConfigError, PolicyError, shown
from ..loss_scale import LossScale, NoLossScale
from .policy import Policy

KEY = re.compile(r"(?P<count>\d{1,18})|(?P<percent>\d{1,3}(\.\d{1,18})?)\s*%")
ENTRY = re.compile(r"\s*(?P<key>[^:|]*?)\s*:\s*(?P<policy>.*?)\s*", re.DOTALL)
LARGEST = 2**31 - 1

ReadPolicy = Callable[[Any], Policy]
"""Reads what stands for a policy."""


@dataclass(frozen=True)
class PolicySchedule:
    """Policies, each from an iteration on. Frozen; compares and hashes by the iterations and policies.

    Args:
        entries: (iteration, policy), ascending, the first one 0.
        written: the keys as they were written ("90%"), for what people read.
        total_steps: the iterations of the whole run; None where it was not given.

    Raises:
        PolicyError: there is no entry for 0, two entries for one iteration, or the policies cannot follow each other.
    """

    entries: tuple[tuple[int, Policy], ...]
    written: tuple[str, ...] = field(default=(), compare=False)
    total_steps: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        written = self.written or tuple([str(step) for step, _ in self.entries])
        object.__setattr__(self, "written", written)
        _check_steps(self.steps, written, self.total_steps)
        _check_policies(self.entries)

    @classmethod
    def of(cls, given: Any, total_steps: int | None = None, read: ReadPolicy | None = None) -> PolicySchedule:
        """Return the schedule that a mapping, a list of pairs, text or a schedule describes.

        Args:
            given: key → policy. A key is a count of iterations (9000, "9000") or a percentage of ``total_steps``
                ("90%", rounded up to a whole iteration). The entries of a list and of text must ascend.
            total_steps: the iterations of the whole run; needed for percentages alone.
            read: reads a policy; the default takes a ``Policy``, its name or its text.

        Raises:
            PolicyError: a key or policy cannot be read, or the entries overlap, run backwards or lack one for 0.
            ConfigError: ``total_steps`` is no whole number of at least 1.
        """
        check_total_steps(total_steps)
        if isinstance(given, PolicySchedule):
            return cls(given.entries, given.written, given.total_steps if total_steps is None else total_steps)
        pairs, ordered = _pairs(given)
        if not pairs:
            raise PolicyError("schedule is empty: give it a policy for iteration 0")
        read = _read_policy if read is None else read
        found = [(_step(key, total_steps), _named(key, policy, read), str(key).strip()) for key, policy in pairs]
        if not ordered:
            found.sort(key=lambda entry: entry[0])
        return cls(tuple([each[:2] for each in found]), tuple([each[2] for each in found]), total_steps)

    @property
    def steps(self) -> tuple[int, ...]:
        """The iterations at which policies come into force, the first one 0."""
        return tuple([step for step, _ in self.entries])

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies, in order."""
        return tuple([policy for _, policy in self.entries])

    def at(self, step: int) -> Policy:
        """Return the policy of the iteration ``step``, counted from 0."""
        return [policy for begin, policy in self.entries if begin <= step or not begin][-1]

    def next_switch(self, step: int) -> int | None:
        """Return the first iteration after ``step`` at which a policy comes into force; None where none does."""
        return next((begin for begin in self.steps if begin > step), None)

    def with_loss_scale(self, loss_scale: LossScale) -> PolicySchedule:
        """Return a copy in which all policies have this loss scale."""
        entries = tuple([(step, policy.replace(loss_scale=loss_scale)) for step, policy in self.entries])
        return PolicySchedule(entries, self.written, self.total_steps)

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale of the whole run: that of the policies that have one; ``NoLossScale`` where none has.

        Raises:
            PolicyError: two policies have different ones.
        """
        found = list(dict.fromkeys(each.resolved_loss_scale for each in self.policies))
        scaling = [each for each in found if each.enabled]
        if len(scaling) > 1:
            raise PolicyError(
                f"schedule: its policies have different loss scales ({', '.join(map(str, scaling))}), and a run has "
                "one: give loss_scale to the session, and leave it out of the policies"
            )
        return scaling[0] if scaling else NoLossScale()

    def __str__(self) -> str:
        return " | ".join(f"{step}: {policy}" for step, policy in self.entries)

    def __repr__(self) -> str:
        return f"PolicySchedule.of({str(self)!r})"


def check_total_steps(value: object) -> None:
    """Refuse a number of iterations that is none.

    Raises:
        ConfigError: not a whole number of at least 1.
    """
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST):
        raise ConfigError(f"total_steps must be a whole number from 1 to {LARGEST}, got {shown(value)}")


def asks_for_total(given: Any) -> bool:
    """Return whether a schedule, as it was written, has percentages."""
    return not isinstance(given, PolicySchedule) and any(
        isinstance(key, str) and "%" in key for key, _ in _pairs(given)[0]
    )


def _pairs(given: Any) -> tuple[list[tuple[Any, Any]], bool]:
    """Return the entries as they are written, and whether their order was chosen."""
    if isinstance(given, Mapping):
        return list(given.items()), False
    if isinstance(given, str):
        return [_pair_of_text(part, given) for part in given.split("|")], True
    if isinstance(given, Iterable) and not isinstance(given, bytes):
        pairs = list(given)
        if all(isinstance(each, (tuple, list)) and len(each) == 2 for each in pairs):
            return [(key, policy) for key, policy in pairs], True
    raise PolicyError(
        f"schedule must map iterations to policies, as in {{0: 'mixed_float8', '90%': 'mixed_bfloat16'}}, got "
        f"{shown(given)}"
    )


def _pair_of_text(part: str, whole: str) -> tuple[str, str]:
    match = ENTRY.fullmatch(part)
    if match is None:
        raise PolicyError(f"schedule {shown(whole)}: {shown(part.strip())} is not written 'iteration: policy'")
    return match["key"], match["policy"]


def _step(key: Any, total_steps: int | None) -> int:
    known = isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool) and abs(key) < 10**18)
    match = KEY.fullmatch(str(key).strip()) if known else None
    if match is None:
        hint = f"; for a part of the run write '{key * 100:g}%'" if isinstance(key, float) and 0 < key < 1 else ""
        raise PolicyError(
            f"schedule: {shown(key)} is neither a count of iterations (0, 9000) nor a percentage of them ('90%'){hint}"
        )
    if match["count"]:
        return min(int(match["count"]), LARGEST + 1)
    percent = Fraction(match["percent"])
    if percent >= 100:
        raise PolicyError(f"schedule: {shown(key)} lies past the end of the run: percentages must be below 100")
    if not percent:
        return 0
    if total_steps is None:
        raise PolicyError(
            f"schedule: {shown(key)} is a percentage of the run, whose length is not known: give total_steps, the "
            "number of iterations, or write a count of iterations"
        )
    return math.ceil(percent * total_steps / 100)


def _read_policy(value: Any) -> Policy:
    return Policy.parse(value) if isinstance(value, str) else value


def _named(key: Any, value: Any, read: ReadPolicy) -> Policy:
    try:
        policy = read(value)
    except ConfigError as error:
        raise type(error)(f"schedule, at {shown(key)}: {error}") from None
    if not isinstance(policy, Policy):
        raise PolicyError(f"schedule, at {shown(key)}: a policy, its name or a table of its fields, got {shown(value)}")
    return policy


def _check_steps(steps: tuple[int, ...], written: tuple[str, ...], total_steps: int | None) -> None:
    if len(written) != len(steps) or 0 not in steps:
        raise PolicyError(
            f"schedule has no policy for iteration 0 (it has {', '.join(written) or 'none'}): add the one to begin with"
        )
    for index in range(1, len(steps)):
        before, now, names = steps[index - 1], steps[index], f"{written[index - 1]!r} and {written[index]!r}"
        if before == now:
            of = f" of {total_steps}" if total_steps is not None else ""
            raise PolicyError(f"schedule: {names} are the same iteration, {now}{of}: leave out one of the two")
        if before > now:
            raise PolicyError(
                f"schedule runs backwards: {written[index]!r} (iteration {now}) stands after {written[index - 1]!r} "
                f"(iteration {before})"
            )
    last = LARGEST if total_steps is None else total_steps - 1
    if steps[-1] > last:
        raise PolicyError(
            f"schedule: {written[-1]!r} lies past the end of the run: its last iteration is {last}, counted from 0"
        )


def _check_policies(entries: tuple[tuple[int, Policy], ...]) -> None:
    """Refuse policies between which parameters would change.

    Raises:
        PolicyError: with the nearest policy that can be switched to.
    """
    for step, policy in entries:
        if policy.param_dtype != "float32" and len(entries) > 1:
            raise PolicyError(
                f"schedule, at {step}: policy {str(policy)!r} keeps parameters in {policy.param_dtype}, and a schedule "
                "switches between policies with float32 parameters, which are their own masters: use "
                f"'mixed_{policy.compute_dtype}'"
            )
        if policy.state_dtype != entries[0][1].state_dtype or policy.update_seed != entries[0][1].update_seed:
            raise PolicyError(
                f"schedule, at {step}: policy {str(policy)!r} keeps moments otherwise than the first one does; give "
                "all policies the same state_dtype and update_seed"
            )
    for step, policy in entries:
        if "|" in "".join(policy.layer_overrides):
            raise PolicyError(f"schedule, at {step}: globs of layer_overrides must not contain '|' in a schedule")
