"""``backend_options.torch``."""

from __future__ import annotations

from dataclasses import dataclass, fields

from unifiedamp.backend import SessionSpec, errors


@dataclass(frozen=True)
class TorchOptions:
    """The settings of this backend alone.

    Attributes:
        cache_enabled: keep autocast's casts of parameters within a region. None: unless torch's cache loses gradients.
        emulate: run the numerics of float8 on any device.
        scale_on_device: keep the loss scale in device scalars on a CPU too, as on a GPU; for testing that path.
        scope_device: ``amp.scope()`` creates tensors on the session's device. False leaves them where torch creates
            them, and ``amp.prepare`` moves the models.
    """

    cache_enabled: bool | None = None
    emulate: bool = False
    scale_on_device: bool = False
    scope_device: bool = True

    @classmethod
    def read(cls, spec: SessionSpec) -> TorchOptions:
        """Return the options of a session.

        Raises:
            ConfigError: an unknown key, or a value that is not true or false.
        """
        spec.check_options([each.name for each in fields(cls)], "torch")
        for name, value in spec.options.items():
            if not isinstance(value, bool):
                raise errors.ConfigError(f"backend_options.torch.{name} must be true or false, got {value!r}")
        options = cls(**spec.options)
        if options.emulate and spec.policy.compute_dtype != "float8":
            spec.warn(
                f"backend_options.torch.emulate has no effect under policy {str(spec.policy)!r}: it is for "
                "mixed_float8",
                errors.PolicyWarning,
            )
        return options
