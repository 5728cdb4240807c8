"""``mode="graph_rewrite"``: TensorFlow's graph pass that converts float32 graphs, under this layer's loss scale.

The pass acts on graphs (``amp.compile``, or Keras's ``fit`` inside ``amp.scope()``), scales no loss and knows no Keras
policy. Its option and its lists are process-wide; they are set around each call and restored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from unifiedamp.backend import PlanRow, Policy, SessionSpec, Support, errors

from .._types import Model
from ..device.selection import DeviceInfo
from ..device.tuning import compiles_with_xla
from ..internals import collect_graphs
from ..patches import GraphRewrite
from . import layers, region_layers
from .global_policy import refuse_mixed_policy
from .operations import REWRITE_OPS
from .rewrite_options import LIST_OF, VARIABLE, list_variables, option_for
from .rewrite_stats import RewriteStats, rewrite_small_graph


class RewriteMode:
    """Layers stay float32; compiled calls run with the rewrite on."""

    def __init__(self, spec: SessionSpec, device: DeviceInfo) -> None:
        self._spec, self._policy = spec, spec.policy
        self._option = option_for(spec.policy, device)
        if compiles_with_xla(spec, spec.compile_mode):
            self.check_xla()
        if spec.policy.layer_overrides:
            raise errors.UnsupportedError(
                "layer_overrides: the graph rewrite sees operations, not layers; use op_overrides, or mode='keras'"
            )
        self._lists = list_variables(spec.policy.op_overrides)
        self._attached: list[Model] = []
        self._stats: RewriteStats | None = None

    def scope(self) -> AbstractContextManager[None]:
        """Refuse a mixed Keras policy; inside, the rewrite is on (for ``model.fit``)."""
        refuse_mixed_policy()
        return GraphRewrite(self._option, self._lists)

    def region(self, enabled: bool, policy: Policy | None) -> tuple[None, None]:
        """Record gradients only.

        Raises:
            UnsupportedError: a region that asks for another precision; the pass sees the whole graph.
        """
        if not enabled or (policy is not None and policy != self._policy):
            raise errors.UnsupportedError(
                "amp.autocast(enabled=False) or another policy: the graph rewrite converts a whole graph and cannot "
                "leave a region out; use op_overrides, or mode='keras'"
            )
        return None, None

    def check_models(self, models: Sequence[Model]) -> None:
        """Refuse layers under a mixed Keras policy."""
        refuse_mixed_policy()
        for model in models:
            for path, layer in layers.walk(model):
                if layer.dtype_policy.name.startswith("mixed_"):
                    raise errors.PrepareError(
                        f"layer {path or model.name!r} has the Keras policy {layer.dtype_policy.name!r}, and the graph "
                        "rewrite needs float32 layers: make the model under 'float32', or use mode='keras'"
                    )

    def attach(self, models: Sequence[Model]) -> None:
        """Make models take their ``training`` argument from regions."""
        for model in models:
            region_layers.attach(model, pinned=True, output_dtype="float32")
            self._attached.append(model)

    def detach(self) -> None:
        """Restore the models' classes."""
        for model in self._attached:
            region_layers.detach(model)
        self._attached.clear()

    def around_call(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return what makes a context for each compiled call; statistics are read from the first."""
        fresh = [True]

        def around() -> AbstractContextManager[Any]:
            if fresh and fresh.pop():
                return self._observed()
            return GraphRewrite(self._option, self._lists)

        return around

    def _observed(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(GraphRewrite(self._option, self._lists))
        graphs = collect_graphs()
        if graphs is not None and self._option is not None:
            found: list[list[Any]] = []
            stack.callback(lambda: self._note(found[0]))
            found.append(stack.enter_context(graphs))
        return stack

    def _note(self, graphs: list[Any]) -> None:
        self._stats = RewriteStats(self._policy.compute_dtype).add(graphs)

    def check_xla(self) -> None:
        """Refuse XLA.

        Raises:
            ConfigError: always; TensorFlow's graph passes leave alone what XLA compiles.
        """
        raise errors.ConfigError(
            "mode='graph_rewrite' and XLA (compile='max', backend_options.tensorflow.xla) exclude each other: XLA "
            "compiles the function as it is, and the rewrite never sees it; leave one out, or use mode='keras' with XLA"
        )

    def on_eager_backward(self) -> None:
        """Warn that eager execution gains nothing."""
        if self._option is not None:
            self._spec.warn(
                "mode='graph_rewrite' converts graphs, and this step ran eagerly, in float32: wrap it in amp.compile",
                errors.PolicyWarning,
            )

    def op_overrides(self) -> Support:
        """Through the pass's lists."""
        return Support(True, "the rewrite's allow, deny and clear lists")

    def explain(self) -> list[PlanRow]:
        """Return rows on the pass, its lists, and what it did to a graph."""
        if self._option is None:
            return [PlanRow("mode", "graph_rewrite", "none", "no effect", "float32 needs no rewrite")]
        native = f"tf.config.optimizer.set_experimental_options({{{self._option!r}: True}})"
        rows = [PlanRow("mode", "graph_rewrite", native, note="inside amp.scope() and compiled calls only")]
        for op, choice in self._policy.op_overrides.items():
            effect = "emulated" if choice == "widest" else "native"
            note = "clear list: follows the operations around it" if choice == "widest" else ""
            native = f"{VARIABLE.format(LIST_OF[choice], 'ADD')}={','.join(REWRITE_OPS[op])}"
            rows.append(PlanRow(f"op_overrides.{op}", choice, native, effect, note))
        return [*rows, self._stats_row()]

    def _stats_row(self) -> PlanRow:
        stats, source = self._stats, "the compiled step's optimized graph"
        if stats is None:
            dtype = self._policy.compute_dtype
            stats = rewrite_small_graph(dtype, lambda: GraphRewrite(self._option, self._lists))
            source = "a small graph made to look"
        if stats is None:
            return PlanRow("rewrite", "unknown", "", "unavailable", "this TensorFlow does not show optimized graphs")
        return PlanRow("rewrite", str(stats), source, "native" if stats else "no effect")
