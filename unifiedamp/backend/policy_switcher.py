"""The role that changes the policy of a running session."""

from __future__ import annotations

from ..policy import Policy
from .required import required


class PolicySwitcher:
    """Changes the session's policy between two iterations, as ``Amp(schedule=...)`` says: feature ``policy_schedule``.

    ``SessionSpec.schedule`` names all policies that will be asked for. All have float32 parameters, and the loss scale
    is the same under each. The backend's constructor refuses those that it cannot run or switch to, and ``prepare``
    what a later policy could not train, so that :meth:`switch` does not fail in the middle of a run.
    """

    means: str = ""

    @required
    def switch(self, policy: Policy) -> None:
        """Put ``policy`` in force for the next forward pass, in prepared models and those prepared later.

        Called outside regions, compiled steps and accumulation windows. Weights, optimizer states, averages and the
        loss scale stay as they are; amax histories begin anew. Steps that were compiled or captured under another
        policy are traced or captured once more, and no step after that. ``spec.policy`` is then ``policy``.
        """

    def resume(self, iteration: int) -> None:
        """Note that the session goes on at this iteration, counted from 0, from a loaded state. A backend whose ranks
        each have a session refuses to train where their iterations differ; the default does nothing.
        """
