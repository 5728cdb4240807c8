"""The roles that a backend may lack, and what stands in their place.

Having the object is the capability: core derives the features in ``ROLE_FEATURES`` from these attributes of
``Backend``. The attribute ``means`` of a role names the framework's means; ``Unsupported`` says why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, Protocol, TypeVar

from ..errors import UnsupportedError
from ..loss_scale import ScaleState
from ..policy import Policy
from .capabilities import MatmulShape, PlanRow, Support
from .recording import Epsilon, RankMessages, RecordedStep, States
from .required import required
from .roles import Model, Optimizer

ROLE_FEATURES = {
    "compiler": "compile",
    "recorder": "recording",
    "forecaster": "forecast",
    "weights": "float32_weights",
    "averaging": "ema",
    "weight_updates": "weight_updates",
    "optimizer_states": "state_dtype",
    "amax_history": "amax_history",
    "policy_switcher": "policy_schedule",
    "converter": "convert_model",
    "layer_shapes": "shape_advice",
    "profiler": "kernel_profile",
    "distributed": "several_devices",
}
"""Attribute of ``Backend`` → the feature that it declares."""


class Unsupported:
    """Stands in the place of an optional role: false, and every use raises ``UnsupportedError`` with the reason.

    Args:
        reason: why the backend does not have the role.
    """

    def __init__(self, reason: str = "not implemented by this backend") -> None:
        self.reason = reason

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedError(f"{name}: {self.reason}")


Role = TypeVar("Role")


class StepOrderState(Protocol):
    """The part of core's record of calls that ``Compiler.compile`` needs."""

    def snapshot(self) -> tuple[Any, ...]:
        """Return the present state, hashable."""

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Restore a state."""


class WrappedStep:
    """A step that core has put something around, for a framework that rewrites the Python of what it compiles.

    Attributes:
        step: the user's part.
    """

    step: Callable[..., Any]

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same around another form of the user's part."""
        raise NotImplementedError


class Compiler:
    """Compiles whole steps: feature ``compile``.

    Attributes:
        means: what the framework compiles with.
        replays_traces: whether a compiled step runs its Python only while tracing, so that core follows each call.
    """

    means: str = ""
    replays_traces: bool = False

    @required
    def compile(self, fn: Callable[..., Any], order: StepOrderState, mode: str) -> Callable[..., Any]:
        """Return the compiled form of a whole step (or of a model): the same results as eager.

        Args:
            fn: a function that calls the session's methods.
            order: core's record of the order of calls. Python code in ``fn`` runs only while tracing, so a tracing
                framework keys its traces by ``order.snapshot()``, and after each call restores the state that the
                trace ended in. A framework that runs the Python each time ignores it.
            mode: "default" or "max" of ``COMPILE_MODES``; core answers "off" itself.
        """

    def tracing(self) -> bool:
        """Return whether the framework is tracing right now, so that values cannot be read."""
        return False


class Recorder:
    """Records each layer's numbers on some steps: feature ``recording``."""

    means: str = ""

    compares: bool = False
    """Whether :meth:`begin` takes ``compare``, and :meth:`weights` returns weights."""

    runs_uncompiled: bool = False
    """Whether steps of a compiled loop run as plain Python where their layers are recorded. Elsewhere recording changes
    no bit of what trains."""

    records_states: bool = False
    """Whether :meth:`states` is there."""

    reduction: Literal["mean", "sum"] = "mean"
    """What the gradients of several ranks, replicas or contexts become before they are applied."""

    @required
    def begin(self, activations: bool, compare: bool = False) -> None:
        """Record the steps from here to :meth:`end`; nothing may be left that costs time afterwards.

        Args:
            compare: also a sketch of each activation and gradient (``unifiedamp.backend.sketch``), and the function of
                each activation; never passed where ``compares`` is false.
            activations: also the largest absolute value of each layer's output, and of each input that no layer
                computed, in execution order. Inference regions do not count.
        """

    @required
    def note_gradients(self, optimizer: Optimizer) -> Sequence[str]:
        """Count the optimizer's raw gradients on the device, by ``recording.EDGE_BITS``; note scale and loss.

        Called between :meth:`begin` and :meth:`end` when a window is complete, before ``unscale``. In a compiled step
        it runs while tracing; that trace returns the counts, and steps that are not recorded run another one.

        Returns:
            The names of the gradients, as ``Training.gradients`` gives them.
        """

    @required
    def end(self) -> RecordedStep:
        """Stop recording; return what was noted, read from the device at once."""

    def epsilons(self) -> list[Epsilon]:
        """Return the epsilons of the prepared models' layers and of the optimizers."""
        return []

    def weights(self) -> Mapping[str, Any]:
        """Return the name of each weight of the prepared models → its true values as a float32 numpy array.

        Copies: a later step does not change them. Names of trained weights are those of :meth:`note_gradients`.
        """
        return {}

    def keep_weights(self) -> None:
        """Keep copies of the trained weights, on the device, until the next :meth:`states`; called between steps."""

    def states(self) -> States:
        """Count the values of each trained weight, its master where it has one, of its update since
        :meth:`keep_weights`, and of its optimizer's states.

        Called between steps, when recording begins and after :meth:`end`; counted where they are, and read at once.
        """
        return {}

    def replicas(self) -> int:
        """Return how many replicas or contexts of this process train together, each a part of
        ``RecordedStep.local``.
        """
        return 1

    def messages(self) -> RankMessages | None:
        """Return what carries a recorded step to the first of several processes; None for a process alone.

        Called once per recording, by all processes in the same order.
        """
        return None


class Weights:
    """Reads and writes a model's true weights: feature ``float32_weights``."""

    means: str = ""

    @required
    def read(self, model: Model) -> dict[str, Any]:
        """Return name → float32 numpy array (complex64 for complex ones) of every floating-point tensor of a model,
        statistics of normalization included: master weights where there are some, else the model's values, cast.
        """

    @required
    def write(self, model: Model, weights: Mapping[str, Any]) -> None:
        """Set what :meth:`read` returned, master weights and the model's own values alike.

        Args:
            model: a model of this framework.
            weights: all of its names → float32 arrays of its shapes.
        """

    def read_optimizer(self, optimizer: Optimizer, models: Sequence[Model]) -> dict[str, Any] | None:
        """Return what a prepared optimizer holds beside its settings: name → numpy array; None where that is not
        known. Names are the same in the next process with the same model.
        """
        return None

    def check_optimizer(self, optimizer: Optimizer, models: Sequence[Model], state: Mapping[str, Any]) -> None:
        """Raise ``CheckpointError`` where a state does not fit; changes nothing."""

    def write_optimizer(self, optimizer: Optimizer, models: Sequence[Model], state: Mapping[str, Any]) -> None:
        """Set what :meth:`read_optimizer` returned; learning rates and other settings stay."""


class Converter:
    """Copies models for inference in low precision: feature ``convert_model``."""

    means: str = ""

    @required
    def convert(self, model: Model, inputs: Sequence[Any], policy: Policy) -> Model:
        """Return a copy of a model whose parameters have ``policy.compute_dtype`` (float16 or bfloat16); see
        ``Amp.convert_model``.
        """


class LayerShapes:
    """Knows the sizes of a model's matrix products: feature ``shape_advice``."""

    means: str = ""

    @required
    def matmul_shapes(self, models: Sequence[Model]) -> list[MatmulShape]:
        """Return the sizes of the models' matrix products and convolutions, in layer order."""


class Profiler:
    """Times the device's kernels: feature ``kernel_profile``."""

    means: str = ""

    @required
    def kernel_times(self, run: Callable[[], Any]) -> dict[str, float]:
        """Call ``run`` under the framework's profiler; return kernel name → seconds on the device."""


class Distributed:
    """Several devices, replicas or ranks that decide alike: feature ``several_devices``.

    Attributes:
        means: how they agree.
        runs_replicas: whether one process may run a step's Python for each of several replicas.
        defers_reduction: whether gradients are reduced by the backward pass, and not before a window's last one.
    """

    means: str = ""
    runs_replicas: bool = False
    defers_reduction: bool = False

    def replica(self) -> int:
        """Return the index, within this process, of the replica that calls; 0 outside replicas.

        Core keeps one order of calls for each, where the backend ``runs_replicas``.
        """
        return 0

    def begin_micro_batch(self, last: bool) -> None:
        """Reduce gradients from here on, or not: a forward pass of an accumulation window is about to run.

        Args:
            last: whether it may be the window's last one. Called where the backend ``defers_reduction``.
        """

    def end_micro_batch(self, last: bool) -> None:
        """Reduce gradients again: the backward passes of a micro-batch have run.

        Args:
            last: whether the window is complete.

        Raises:
            StepOrderError: it is, and its last gradients were not reduced.
        """

    def state_loaded(self, state: ScaleState) -> None:
        """Note that a state was loaded, perhaps on this rank alone; ``Training.write_state`` follows."""

    def check_skips(self, state: ScaleState) -> None:
        """Refuse to go on where steps were skipped because ranks differ. Called where the host reads the state after
        steps.

        Raises:
            AmpError: naming the ranks.
        """

    def mp_policy(self) -> Any:
        """Return the session's policy in the form that the framework's sharded models take.

        Raises:
            UnsupportedError: the framework has no such form.
        """
        raise UnsupportedError("amp.mp_policy: only torch's sharded models (fully_shard) take a policy")


class Tuner:
    """Speed settings besides the policy, and the framework's debugging modes."""

    @required
    def support(self) -> Mapping[str, Support]:
        """Return item of ``Tuning`` → whether it has an effect here, by which native means or why not."""

    @required
    def rows(self) -> list[PlanRow]:
        """Return a row "tuning.<item>" for each supported item of ``spec.tuning``, and rows on what the prepared models
        show ("tuning.bias_before_norm").
        """

    def debug_modes(self) -> dict[str, str]:
        """Return the framework's debugging modes that are on: how each is set → what it costs."""
        return {}
