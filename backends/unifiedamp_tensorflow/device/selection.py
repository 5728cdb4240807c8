"""The device of a session, chosen from those that TensorFlow sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from unifiedamp.backend import errors


@dataclass(frozen=True)
class DeviceInfo:
    """What the backend knows of a device.

    Attributes:
        name: as users write it ("cpu", "gpu:0").
        tf_name: as TensorFlow writes it ("/GPU:0").
        compute_capability: of an NVIDIA GPU; None elsewhere.
    """

    name: str
    tf_name: str
    compute_capability: tuple[int, int] | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU."""
        return self.name.startswith("cpu")


def select_device(asked: str | None) -> DeviceInfo:
    """Return the device asked for, else the first GPU, else the CPU.

    Raises:
        ConfigError: TensorFlow sees no such device.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if asked is None:
        return _gpu(0, gpus) if gpus else DeviceInfo("cpu", "/CPU:0")
    kind, _, index = asked.lower().replace("cuda", "gpu").replace("(", ":").replace(")", "").strip("/").partition(":")
    number = int(index) if index.isdigit() else 0
    if kind == "cpu" and (not index or index == "0"):
        return DeviceInfo("cpu", "/CPU:0")
    if kind == "gpu" and number < len(gpus):
        return _gpu(number, gpus)
    seen = ", ".join(["cpu", *[f"gpu:{index}" for index in range(len(gpus))]])
    raise errors.ConfigError(f"device {asked!r}: TensorFlow sees no such device here (it sees: {seen})")


def _gpu(index: int, gpus: Sequence[object]) -> DeviceInfo:
    details = tf.config.experimental.get_device_details(gpus[index])
    return DeviceInfo(f"gpu:{index}", f"/GPU:{index}", details.get("compute_capability"))
