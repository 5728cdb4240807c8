"""A device of a session."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A device of a session.

    Attributes:
        name: as users write it ("cpu", "gpu:0").
        tf_name: as TensorFlow writes it.
        compute_capability: of an NVIDIA GPU; None elsewhere.
    """

    name: str
    tf_name: str
    compute_capability: tuple[int, int] | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU."""
        return self.name.startswith("cpu")
