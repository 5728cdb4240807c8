"""``mode="graph_rewrite"``: the grappler pass that converts float32 graphs, with this layer's loss scale around it.

The pass acts on graphs (``amp.compile``, or Keras's ``fit`` inside ``amp.scope()``), scales no loss and knows no Keras
policy. Its switch and its lists are process-wide; they are set around each call and put back.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import tensorflow as tf

from unifiedamp.backend import PlanRow, Policy, SessionSpec, Support, errors

from ..device.devices import Device
from ..device.tuning import by_xla
from . import layers
from .operations import REWRITE_OPS
from .rewrite_stats import Proof, probe, watching

SWITCHES = {("float16", "gpu"): "auto_mixed_precision", ("bfloat16", "cpu"): "auto_mixed_precision_onednn_bfloat16"}
LISTS = ("ALLOWLIST", "INFERLIST", "DENYLIST", "CLEARLIST")
LIST_OF = {"compute": "ALLOWLIST", "float32": "DENYLIST", "widest": "CLEARLIST"}
VARIABLE = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{}_{}"


def switch_for(policy: Policy, device: Device) -> str | None:
    """Return the optimizer option for a policy on a device; None for float32, which needs none.

    Raises:
        PolicyNotSupportedError: TensorFlow has no rewrite for it here.
    """
    if policy.param_dtype != "float32" or policy.output_dtype != "float32":
        raise errors.PolicyNotSupportedError(
            f"mode='graph_rewrite' starts from a float32 graph, and {str(policy)!r} has parameters or outputs in "
            f"another dtype; nearest: 'mixed_{policy.compute_dtype}'"
        )
    if policy.compute_dtype == "float32":
        return None
    kind = "cpu" if device.is_cpu else "gpu"
    found = SWITCHES.get((policy.compute_dtype, kind))
    if found is None:
        other = "bfloat16 through oneDNN" if kind == "cpu" else "float16"
        nearest = "mixed_bfloat16" if kind == "cpu" else "mixed_float16"
        raise errors.PolicyNotSupportedError(
            f"TensorFlow's graph rewrite to {policy.compute_dtype} does nothing on {device.name} (it has {other} "
            f"there, and float16 needs a GPU); nearest: {nearest!r}, or mode='keras'"
        )
    return found


def list_variables(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that put the nodes of each operation on the list for its choice.

    Raises:
        UnsupportedError: an operation is no graph node of its own, or two choices meet on one node.
    """
    wanted: dict[str, str] = {}
    for op, choice in overrides.items():
        if op not in REWRITE_OPS:
            raise errors.UnsupportedError(
                f"op_overrides.{op}: TensorFlow has no single graph operation for it, so the rewrite's lists cannot "
                f"name it (they can: {', '.join(REWRITE_OPS)})"
            )
        for node in REWRITE_OPS[op]:
            if wanted.setdefault(node, LIST_OF[choice]) != LIST_OF[choice]:
                raise errors.UnsupportedError(
                    f"op_overrides.{op}={choice!r}: its graph operation {node} is also named by another override, "
                    "with another choice; give both the same"
                )
    variables: dict[str, list[str]] = defaultdict(list)
    for node, chosen in wanted.items():
        for name in LISTS:
            variables[VARIABLE.format(name, "ADD" if name == chosen else "REMOVE")].append(node)
    return {name: ",".join(nodes) for name, nodes in variables.items()}


def active_switches() -> list[str]:
    """Return the rewrite options that are on in this process."""
    options = tf.config.optimizer.get_experimental_options()
    return [switch for switch in SWITCHES.values() if options.get(switch)]


class Switched:
    """Turns the rewrite on, with its lists; puts back what was found."""

    def __init__(self, switch: str | None, variables: Mapping[str, str]) -> None:
        self._switch, self._variables = switch, variables
        self._found: list[tuple[Any, dict[str, str | None]]] = []

    def __enter__(self) -> None:
        present = {name: os.environ.get(name) for name in self._variables}
        option = None
        if self._switch is not None:
            option = tf.config.optimizer.get_experimental_options().get(self._switch)
            tf.config.optimizer.set_experimental_options({self._switch: True})
        for name, nodes in self._variables.items():
            os.environ[name] = f"{present[name]},{nodes}" if present[name] else nodes
        self._found.append((option, present))

    def __exit__(self, *exception: object) -> None:
        option, present = self._found.pop()
        if self._switch is not None:
            tf.config.optimizer.set_experimental_options({self._switch: option})
        for name, value in present.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class RewriteMode:
    """Layers stay float32; compiled calls run with the rewrite on."""

    def __init__(self, spec: SessionSpec, device: Device) -> None:
        self._spec, self._policy = spec, spec.policy
        self._switch = switch_for(spec.policy, device)
        if by_xla(spec, spec.compile_mode):
            self.check_xla()
        if spec.policy.layer_overrides:
            raise errors.UnsupportedError(
                "layer_overrides: the graph rewrite sees operations, not layers; use op_overrides, or mode='keras'"
            )
        self._variables = list_variables(spec.policy.op_overrides)
        self._attached: list[Any] = []
        self._seen: Proof | None = None

    def scope(self) -> AbstractContextManager[None]:
        """Refuse a mixed Keras policy; inside, the rewrite is on (for ``model.fit``)."""
        refuse_keras_policy()
        return Switched(self._switch, self._variables)

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

    def check_models(self, models: Sequence[Any]) -> None:
        """Refuse layers under a mixed Keras policy."""
        refuse_keras_policy()
        for model in models:
            for path, layer in layers.walk(model):
                if layer.dtype_policy.name.startswith("mixed_"):
                    raise errors.PrepareError(
                        f"layer {path or model.name!r} has the Keras policy {layer.dtype_policy.name!r}, and the graph "
                        "rewrite needs float32 layers: make the model under 'float32', or use mode='keras'"
                    )

    def attach(self, models: Sequence[Any]) -> None:
        """Let models take their ``training`` argument from regions."""
        for model in models:
            layers.attach(model, pinned=True, output_dtype="float32")
            self._attached.append(model)

    def detach(self) -> None:
        """Give models their classes back."""
        for model in self._attached:
            layers.detach(model)
        self._attached.clear()

    def around_call(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return a context maker for compiled calls; the first call of each function is looked into."""
        fresh = [True]

        def around() -> AbstractContextManager[Any]:
            if fresh and fresh.pop():
                return self._looking()
            return Switched(self._switch, self._variables)

        return around

    def _looking(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(Switched(self._switch, self._variables))
        graphs = watching()
        if graphs is not None and self._switch is not None:
            found: list[list[Any]] = []
            stack.callback(lambda: self._note(found[0]))
            found.append(stack.enter_context(graphs))
        return stack

    def _note(self, graphs: list[Any]) -> None:
        self._seen = Proof(self._policy.compute_dtype).add(graphs)

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
        if self._switch is not None:
            self._spec.warn(
                "mode='graph_rewrite' converts graphs, and this step ran eagerly, in float32: wrap it in amp.compile",
                errors.PolicyWarning,
            )

    def op_overrides(self) -> Support:
        """Through the pass's lists."""
        return Support(True, "the rewrite's allow, deny and clear lists")

    def explain(self) -> list[PlanRow]:
        """Return rows on the pass, its lists, and what it did to a graph."""
        if self._switch is None:
            return [PlanRow("mode", "graph_rewrite", "none", "no effect", "float32 needs no rewrite")]
        native = f"tf.config.optimizer.set_experimental_options({{{self._switch!r}: True}})"
        rows = [PlanRow("mode", "graph_rewrite", native, note="inside amp.scope() and compiled calls only")]
        for op, choice in self._policy.op_overrides.items():
            effect = "emulated" if choice == "widest" else "native"
            note = "clear list: follows the operations around it" if choice == "widest" else ""
            native = f"{VARIABLE.format(LIST_OF[choice], 'ADD')}={','.join(REWRITE_OPS[op])}"
            rows.append(PlanRow(f"op_overrides.{op}", choice, native, effect, note))
        return [*rows, self._proof_row()]

    def _proof_row(self) -> PlanRow:
        proof, source = self._seen, "the compiled step's optimized graph"
        if proof is None:
            dtype = self._policy.compute_dtype
            proof, source = probe(dtype, lambda: Switched(self._switch, self._variables)), "a small graph made to look"
        if proof is None:
            return PlanRow("rewrite", "unknown", "", "unavailable", "this TensorFlow does not show optimized graphs")
        return PlanRow("rewrite", str(proof), source, "native" if proof else "no effect")


def refuse_keras_policy() -> None:
    """Refuse a mixed Keras policy that is active.

    Raises:
        PrepareError: one is.
    """
    policy = tf.keras.mixed_precision.global_policy().name
    if policy.startswith("mixed_"):
        raise errors.PrepareError(
            f"the Keras policy {policy!r} is active, and the graph rewrite needs float32 layers: reset it by "
            "tf.keras.mixed_precision.set_global_policy('float32'), or use mode='keras'"
        )
