"""``Backend``: one framework for one session, as a few objects with one job each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ..errors import BackendUnavailableError, UnsupportedError
from .amax_history import AmaxHistory
from .capabilities import Capabilities, EnvironmentDefaults, PlanRow, Support
from .ema import Averaging
from .forecast import Forecaster
from .launch import Launch, Ranks
from .optimizer_states import OptimizerStates
from .optional_roles import (
    ROLE_FEATURES,
    Compiler,
    Converter,
    Distributed,
    LayerShapes,
    Profiler,
    Recorder,
    Tuner,
    Unsupported,
    Weights,
)
from .policy_switcher import PolicySwitcher
from .required import required, required_attribute
from .roles import Device, Precision, Training
from .spec import SessionSpec
from .weight_updates import WeightUpdates


class Backend:
    """The composition root of a backend. Its constructor makes the roles; it holds nothing else.

    Args:
        spec: what the session asks for. The constructor refuses what cannot run here (``PolicyNotSupportedError`` with
            the reason and the nearest policy that does) and warns once, through ``spec.warn``, of what runs without a
            benefit.

    Attributes:
        name: the backend's name.
        ray_trainer: ``module:class`` of the trainer in ``ray.train`` that starts the processes which ``join`` joins;
            None where there is none.
        interop: what ``unifiedamp.compat`` and ``unifiedamp.integrations`` need of this framework beyond the roles.
    """

    name: ClassVar[str]
    spec: SessionSpec = required_attribute("Call super().__init__(spec) in its constructor.")
    ray_trainer: ClassVar[str | None] = None

    device: Device = Device()
    precision: Precision = Precision()
    training: Training = Training()
    compiler: Compiler | Unsupported = Unsupported()
    recorder: Recorder | Unsupported = Unsupported()
    forecaster: Forecaster | Unsupported = Unsupported()
    weights: Weights | Unsupported = Unsupported()
    averaging: Averaging | Unsupported = Unsupported()
    weight_updates: WeightUpdates | Unsupported = Unsupported()
    optimizer_states: OptimizerStates | Unsupported = Unsupported()
    amax_history: AmaxHistory | Unsupported = Unsupported()
    policy_switcher: PolicySwitcher | Unsupported = Unsupported()
    converter: Converter | Unsupported = Unsupported()
    layer_shapes: LayerShapes | Unsupported = Unsupported()
    profiler: Profiler | Unsupported = Unsupported()
    distributed: Distributed | Unsupported = Unsupported()
    tuner: Tuner | Unsupported = Unsupported()
    interop: Any = Unsupported()

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec

    @classmethod
    @required
    def default_policy(cls, device: str | None) -> tuple[str, str]:
        """Return the preset recommended for the device, and why in a few words."""

    @classmethod
    def environment_defaults(cls, device: str | None, options: Mapping[str, Any]) -> EnvironmentDefaults:
        """Return what the framework's own environment variables ask for; called where no policy was given.

        Args:
            device: the device asked for, or None.
            options: ``backend_options`` of this backend.

        Raises:
            ConfigError: a variable cannot be understood; the message names it.
        """
        return EnvironmentDefaults()

    @classmethod
    @required
    def custom_function(cls, target: Any, cast_inputs: str | None) -> Any:
        """Return ``target`` (a function or a custom-operation class) for use inside autocast.

        Inside an enabled region floating-point inputs are cast to ``cast_inputs`` and the body runs without autocast;
        None leaves inputs unchanged. A kind of target that the framework cannot wrap raises ``UnsupportedError``.
        """

    @classmethod
    def communication(cls) -> Mapping[str, str]:
        """Return library of communication between devices and processes → its version, "available", or why not."""
        return {}

    @classmethod
    def join(cls, launch: Launch, device: str | None) -> tuple[Ranks, str]:
        """Join the processes that a launcher started, to train a workload together; called before a session is made.

        Args:
            launch: what it says of this process.
            device: the device asked for, or None.

        Returns:
            The processes, and this one's device.

        Raises:
            UnsupportedError: the backend trains a workload in one process; the default.
            ConfigError: this process has no such device, or cannot reach the others.
        """
        raise UnsupportedError(
            f"train: {launch.launcher} started {launch.size} processes, and backend {cls.name!r} trains a workload in "
            "one: each would train on all data and write the same folder; start one process, or write the loop of "
            "several as a script (docs/several-gpus.md)"
        )

    @required
    def declare(self) -> Capabilities:
        """Return what this backend can do on the session's device, without the features of optional roles."""

    def capabilities(self) -> Capabilities:
        """Return what this backend can do on the session's device, each answer with a reason."""
        declared = self.declare()
        if not isinstance(declared, Capabilities):
            raise BackendUnavailableError(f"backend {self.name!r}: declare() returned {declared!r}, not Capabilities")
        return replace(declared, features={**declared.features, **role_features(self)})

    def require(self, feature: str, call: str) -> None:
        """Refuse a call whose feature is missing.

        Raises:
            UnsupportedError: with the reason; the message begins with ``call``.
        """
        support = self.capabilities().feature(feature)
        if not support:
            raise UnsupportedError(f"{call}: backend {self.name!r} cannot: {support.reason}")

    @required
    def explain(self) -> list[PlanRow]:
        """Return the resolved plan: each setting, the native calls it becomes, and what has no effect here."""

    @required
    def close(self) -> None:
        """Undo what ``prepare`` attached to native objects (hooks, patched methods). Called by ``Amp.close``."""


def role_features(backend: Backend) -> dict[str, Support]:
    """Return the features that follow from a backend's optional roles.

    Raises:
        BackendUnavailableError: what stands in the place of a role is none.
    """
    answers = {}
    for attribute, feature in ROLE_FEATURES.items():
        role = getattr(backend, attribute)
        if isinstance(role, type) or not (isinstance(role, Unsupported) or hasattr(role, "means")):
            raise BackendUnavailableError(
                f"backend {backend.name!r}: its {attribute} is {role!r}; make it an object of a class derived from the "
                "role's in unifiedamp.backend, or Unsupported('why')"
            )
        answers[feature] = Support(False, role.reason) if isinstance(role, Unsupported) else Support(True, role.means)
    return answers
