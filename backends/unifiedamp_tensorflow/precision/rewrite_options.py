"""The options and lists of TensorFlow's graph rewrite: which turn it on, and which operations each list names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from unifiedamp.backend import Policy, errors

from .. import patches
from ..device.selection import DeviceInfo
from .operations import REWRITE_OPS

OPTIONS = {("float16", "gpu"): "auto_mixed_precision", ("bfloat16", "cpu"): "auto_mixed_precision_onednn_bfloat16"}
LISTS = ("ALLOWLIST", "INFERLIST", "DENYLIST", "CLEARLIST")
LIST_OF = {"compute": "ALLOWLIST", "float32": "DENYLIST", "widest": "CLEARLIST"}
VARIABLE = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{}_{}"


def option_for(policy: Policy, device: DeviceInfo) -> str | None:
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
    found = OPTIONS.get((policy.compute_dtype, kind))
    if found is None:
        other = "bfloat16 through oneDNN" if kind == "cpu" else "float16"
        nearest = "mixed_bfloat16" if kind == "cpu" else "mixed_float16"
        raise errors.PolicyNotSupportedError(
            f"TensorFlow's graph rewrite to {policy.compute_dtype} does nothing on {device.name} (it has {other} "
            f"there, and float16 needs a GPU); nearest: {nearest!r}, or mode='keras'"
        )
    return found


def list_variables(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that put each operation's nodes on the list for its choice.

    Raises:
        UnsupportedError: an operation is not a graph node, or two choices meet on one node.
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


def active_options() -> list[str]:
    """Return the rewrite's options that are on in this process."""
    return patches.rewrite_options_on(list(OPTIONS.values()))
