"""What the counted process says of its session."""

from __future__ import annotations

from typing import Any

from ..config import plugins


def describe(session: Any, own_policy: str, measured_policy: str | None, said: tuple[str, ...]) -> dict[str, Any]:
    """Return a session as plain values.

    Args:
        session: an ``Amp``; it trains.
        own_policy: what the script said.
        measured_policy: what the command says; None where it leaves the script's.
        said: sentences on settings of the script that the command replaced.
    """
    capabilities = session.capabilities
    plugin = plugins.load_plugin(session.backend.name)
    return {
        "backend": session.backend.name,
        "framework": f"{plugin.framework} {plugins.installed_version(plugin)}",
        "device": capabilities.device,
        "policy": measured_policy or str(session.policy),
        "own_policy": own_policy,
        "loss_scale": str(session.loss_scale_settings),
        "policies": {name: {"ok": bool(one), "helps": one.helps} for name, one in capabilities.policies.items()},
        "layers": _layers(session, session.models),
        "said": list(said),
    }


def _layers(session: Any, models: list[Any]) -> list[str]:
    """Return the paths of the layers that multiply matrices."""
    if not models or not session.capabilities.feature("shape_advice"):
        return []
    return [shape.layer for shape in session.backend.layer_shapes.matmul_shapes(models)]
