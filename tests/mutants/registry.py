"""Where mutants are registered."""

from __future__ import annotations

from toy.backend import ToyBackend
from toy.device import ToyDevice
from toy.ema import ToyAverage, ToyAveraging
from toy.precision import ToyPrecision
from toy.training import ToyTraining

MUTANTS: dict[str, tuple[type[ToyBackend], str]] = {}


def mutant(killed_by: str):
    """Register a mutant of a role, or of the backend, under its class name, with the test that must fail."""

    def register(cls):
        MUTANTS[cls.__name__] = (_backend_with(cls), killed_by)
        return cls

    return register


def _backend_with(cls):
    roles = {ToyDevice: "device_class", ToyPrecision: "precision_class", ToyTraining: "training_class"}
    if issubclass(cls, ToyAverage):
        averaging = type(cls.__name__, (ToyAveraging,), {"average_class": cls})
        return type(cls.__name__, (ToyBackend,), {"averaging_class": averaging})
    for role, attribute in roles.items():
        if issubclass(cls, role):
            return type(cls.__name__, (ToyBackend,), {attribute: cls})
    return cls
