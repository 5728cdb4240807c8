"""The device: arrays in and out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unifiedamp.backend import Device, errors, host_array


class JaxDevice(Device):
    """One JAX device.

    Args:
        device: the device.
        asked: whether the user named it. Otherwise an array stays where JAX may move it, as the models' own do.
    """

    def __init__(self, device: jax.Device, asked: bool) -> None:
        self.name = f"{device.platform}:{device.id}"
        self.reads_without_sync = device.platform == "cpu"
        self._target = device if asked else None

    def to_native(self, array: Any, dtype: str | None = None) -> jax.Array:
        if isinstance(array, jax.Array):
            return array if dtype is None else array.astype(_checked(dtype))
        if not isinstance(array, (np.ndarray, np.generic)) and hasattr(array, "__dlpack__"):
            array = jnp.from_dlpack(array)
        else:
            array = host_array(array)
            array = array.astype(
                array.dtype.newbyteorder("="), copy=False
            )  # JAX reads the processor's byte order alone
        if dtype is not None or (array.dtype.kind == "f" and array.dtype.itemsize > 4):
            array = array.astype(_checked(dtype or "float32"))
        return jax.device_put(array, self._target)

    def to_numpy(self, tensor: Any) -> Any:
        wide = tensor.astype(jnp.float32) if getattr(tensor, "dtype", None) == jnp.bfloat16 else tensor
        return np.asarray(wide)


def _checked(dtype: str) -> Any:
    if dtype == "float64" and not jax.config.jax_enable_x64:
        raise errors.UnsupportedError("amp.to_native: JAX has no float64 unless jax_enable_x64 is set")
    return jnp.dtype(dtype)
