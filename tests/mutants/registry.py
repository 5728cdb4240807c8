"""Where mutants are registered."""

from __future__ import annotations

from toy.backend import ToyBackend

MUTANTS: dict[str, tuple[type[ToyBackend], str]] = {}


def mutant(killed_by: str):
    """Register a mutant under its class name, with the test that must fail."""

    def register(cls):
        MUTANTS[cls.__name__] = (cls, killed_by)
        return cls

    return register
