"""What the roles of one session share: the prepared objects, and all that changes from step to step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flax import nnx
from jax.extend.core import get_opaque_trace_state

from .gradients import Trained, locations
from .late_params import LateParams
from .scaler import Carry


def current_trace() -> Any:
    """Return what JAX is tracing, comparable; one value means that it traces nothing."""
    return get_opaque_trace_state(convention="nnx")


@dataclass
class JaxSession:
    """The state of one session.

    Attributes:
        carry: scale, counters and gradient buffers: what a compiled step takes in and returns.
        models: the prepared models.
        trained: the prepared optimizers and what they train.
        trace: the JAX transformation in which ``carry`` is valid.
        known: the parameters that the models had when they were prepared.
        late: which parameters came into the models since then without an optimizer; found before a step.
        gone: which parameters of optimizers left the models.
    """

    carry: Carry
    models: list[nnx.Module] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)
    trace: Any = field(default_factory=current_trace)
    known: LateParams = field(default_factory=LateParams)
    late: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def look(self) -> None:
        """Find where the parameters of the models are now, outside of transformations."""
        where = locations(self.models)
        self.gone = tuple([name for one in self.trained for name in one.find(where)])
        self.late = self.known.find(self.models, {id(each) for one in self.trained for each in one.own.values()})

    def places(self) -> Any:
        """Return what :meth:`look` found, hashable."""
        return self.late, self.gone, tuple([tuple(one.paths.values()) for one in self.trained])

    def bundle(self) -> Any:
        """Return all that a step may change besides ``carry``."""
        return self.models, [one.optimizer for one in self.trained]
