"""The session's models, and what the policy changes in each."""

from __future__ import annotations

from unifiedamp.backend import SessionSpec

from .._types import Block, Parameter
from ..layer_paths import walk
from . import float8_layers
from .layers import BoundaryCasts
from .low_precision_params import Arrays, cast_parameters, layer_dtypes, round_parameters
from .policies import holds_rounded
from .tables import CastTables


class PreparedModels:
    """Casts parameters where the policy says so, and wraps blocks in their casts.

    Args:
        spec: the session's.
        boundaries: the casts at blocks.
        tables: made anew for each model.

    Attributes:
        originals: id of a Parameter → its float32 arrays before it was cast.
        emulated: id of a Parameter → the Parameter, of those whose float32 arrays hold bfloat16 numbers.
    """

    def __init__(self, spec: SessionSpec, boundaries: BoundaryCasts, tables: CastTables) -> None:
        self._spec = spec
        self._boundaries, self._tables = boundaries, tables
        self.originals: dict[int, Arrays] = {}
        self.emulated: dict[int, Parameter] = {}

    @property
    def models(self) -> list[Block]:
        """The models, in the order in which they were prepared."""
        return self._boundaries.models

    def add(self, model: Block) -> None:
        """Prepare a model.

        Raises:
            PolicyError: two globs of ``layer_overrides`` match one layer, or a glob matches none.
            PrepareError: a layer has sparse gradients, which MXNet does not compute in 16 bits.
        """
        if self._spec.policy.param_dtype != "float32":
            self._cast_parameters(model)
        self._boundaries.add_model(model)
        self._tables.reset()

    def check(self) -> None:
        """Warn where the policy computes in float8 and no layer does.

        Raises:
            PolicyError: see :meth:`add`.
        """
        for policy in self._spec.policies:
            if policy.compute_dtype == "float8":
                float8_layers.check(self.models, self._spec.under(policy))

    def _cast_parameters(self, model: Block) -> None:
        policy, blocks = self._spec.policy, dict(walk(model))
        dtypes = layer_dtypes(model, policy)
        emulate = holds_rounded(policy)
        if emulate:
            self.emulated |= round_parameters(model, dtypes, policy)
        else:
            self.originals |= cast_parameters(model, dtypes, policy)
        self._boundaries.cast_at(model, policy.param_dtype, emulate=emulate)
        for path, dtype in dtypes.items():
            self._boundaries.cast_at(blocks[path], dtype, policy.param_dtype, emulate)

    def close(self) -> None:
        """Give the models' blocks their methods back."""
        self._boundaries.close()
