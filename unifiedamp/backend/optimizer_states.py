"""The role that keeps optimizers' moments in fewer bits between steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .required import required


class OptimizerStates:
    """Keeps optimizers' moments in ``Policy.state_dtype`` between steps: feature ``state_dtype``.

    At each applied step the framework's own optimizer gets them in float32, and what it leaves is rounded by
    ``state_rounding``. Counts and other states that are no moments stay as they are. A step that is not applied
    changes neither moments nor random numbers. A native state of the optimizer holds the moments in a dtype of the
    framework that holds their values; one that was saved without ``state_dtype`` may be loaded, and is rounded at the
    next applied step. Optimizers whose moments the backend does not know are refused by ``prepare``.
    """

    means: str = ""

    dtypes: Sequence[str] = ("bfloat16",)
    """Of ``Policy.state_dtype``."""

    @required
    def steps(self) -> list[int]:
        """Return how many updates were rounded, for each optimizer in order of ``prepare``; may synchronize."""

    @required
    def set_steps(self, steps: Sequence[int]) -> None:
        """Set what :meth:`steps` returned."""

    @required
    def read(self) -> list[dict[str, Any]]:
        """Return, for each optimizer, "parameter/moment" → values that are kept, a float32 numpy array; names of
        moments are those of ``state_rounding.MOMENTS``. None before the first applied step where the optimizer makes
        its states there. Also under ``Policy.update`` without ``state_dtype``.

        Raises:
            UnsupportedError: the moments of an optimizer are not known.
        """

    @required
    def applied(self) -> list[int]:
        """Return how many steps each optimizer has applied by its own count, which bias corrections follow from."""

    @required
    def write(self, moments: Sequence[Mapping[str, Any]], applied: Sequence[int]) -> None:
        """Set what :meth:`read` and :meth:`applied` returned, here or on another framework; moments that are left out
        stay. A momentum becomes a velocity and the other way round, by :func:`converted`.
        """

    @required
    def nbytes(self) -> int:
        """Return the bytes that the moments take between steps, scales included."""


def converted(given: Mapping[str, Any], name: str, moment: str, lr: float) -> Any:
    """Return a moment of a parameter among those of any framework, float32; None where it is not there.

    Args:
        given: what ``OptimizerStates.read`` returned for an optimizer.
        name: of the parameter.
        moment: our name of the moment.
        lr: the learning rate: a velocity is ``-lr`` times the momentum.
    """
    if f"{name}/{moment}" in given:
        return given[f"{name}/{moment}"]
    others = {"momentum": ("velocity", -1 / lr if lr else 0.0), "velocity": ("momentum", -lr)}
    other, factor = others.get(moment, ("", 0.0))
    found = given.get(f"{name}/{other}")
    return None if found is None else (found * factor).astype("float32")
