"""The list of faults, in the order in which they are tried, and the bases that they are written on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from unifiedamp.backend import (
    Averaging,
    Backend,
    Converter,
    Device,
    Forecaster,
    LayerShapes,
    Precision,
    Recorder,
    SessionSpec,
    Training,
    Weights,
)


class RoleFault:
    """Stands in the place of one role of a backend: passes every call on to it, except those that go wrong.

    Args:
        backend: the backend, whose role is still the right one.

    Attributes:
        role: the attribute of ``Backend``.
        inner: the right role.
    """

    role: ClassVar[str]
    inner: Any

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.inner = getattr(backend, self.role)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def tracing(self) -> bool:
        """Return whether a compiled step is being traced."""
        return bool(self.backend.compiler and self.backend.compiler.tracing())


class DeviceFault(RoleFault):
    """A fault of the device."""

    role = "device"
    inner: Device


class PrecisionFault(RoleFault):
    """A fault of regions."""

    role = "precision"
    inner: Precision


class TrainingFault(RoleFault):
    """A fault of the training calls."""

    role = "training"
    inner: Training


class RecorderFault(RoleFault):
    """A fault of the recorder."""

    role = "recorder"
    inner: Recorder


class ForecasterFault(RoleFault):
    """A fault of the forecast."""

    role = "forecaster"
    inner: Forecaster


class WeightsFault(RoleFault):
    """A fault of reading and writing weights."""

    role = "weights"
    inner: Weights


class AveragingFault(RoleFault):
    """A fault of averages of weights."""

    role = "averaging"
    inner: Averaging


class ConverterFault(RoleFault):
    """A fault of converted models."""

    role = "converter"
    inner: Converter


class LayerShapesFault(RoleFault):
    """A fault of layer shapes."""

    role = "layer_shapes"
    inner: LayerShapes


F = TypeVar("F", bound=type[RoleFault] | type[Backend])


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        name: what is wrong, in words joined by underscores.
        layer: the class that does it: one role's, or a subclass of ``Backend`` to be laid over another.
        seen_by: tests that look at it; they are run first.
        needs: the capability without which the fault changes nothing; empty for none.
    """

    name: str
    layer: type[RoleFault] | type[Backend]
    seen_by: tuple[str, ...]
    needs: str = ""

    @property
    def about(self) -> str:
        """What is wrong, in a sentence."""
        return (self.layer.__doc__ or "").strip()

    def over(self, backend: type[Backend]) -> type[Backend]:
        """Return ``backend`` with the fault."""
        members = {"__module__": backend.__module__, "__doc__": self.about}
        if issubclass(self.layer, RoleFault):
            return type(backend.__name__, (backend,), {**members, "__init__": _replacing(backend, self.layer)})
        return type(backend.__name__, (self.layer, backend), members)


def _replacing(backend: type[Backend], layer: type[RoleFault]) -> Callable[[Any, SessionSpec], None]:
    def __init__(self: Any, spec: SessionSpec) -> None:
        backend.__init__(self, spec)
        if getattr(self, layer.role):
            setattr(self, layer.role, layer(self))

    return __init__


FAULTS: dict[str, Fault] = {}


def fault(*seen_by: str, needs: str = "") -> Callable[[F], F]:
    """Add a fault, named after its class.

    Args:
        *seen_by: names of tests to run first.
        needs: see :class:`Fault`.
    """

    def register(layer: F) -> F:
        name = "".join(f"_{one.lower()}" if one.isupper() else one for one in layer.__name__).lstrip("_")
        FAULTS[name] = Fault(name, layer, seen_by, needs)
        return layer

    return register
