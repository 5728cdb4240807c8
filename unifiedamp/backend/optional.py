"""What a backend may leave out: the calls behind capabilities that not every framework has.

Each stands here with what it means and an answer for a backend that has not written it. Core asks for the capability
before it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from .. import errors
from ..policy import Policy
from . import recording as recording
from .capabilities import EnvironmentDefaults, MatmulShape, PlanRow


class Extras:
    """The base of ``Backend`` that holds these calls."""

    name: ClassVar[str]

    # -- settings ------------------------------------------------------------------------------------------------

    @classmethod
    def environment_defaults(cls, device: str | None, options: Mapping[str, Any]) -> EnvironmentDefaults:
        """Return what the framework's own environment variables ask for; asked where no policy was given.

        Args:
            device: the device asked for, or None.
            options: ``backend_options`` of this backend.

        Raises:
            ConfigError: a variable cannot be understood; the message names it.
        """
        return EnvironmentDefaults()

    def tuning_rows(self) -> list[PlanRow]:
        """Return a row "tuning.<item>" for each item of ``spec.tuning`` that is declared in ``Capabilities.tuning``,
        and rows on what the prepared models show ("tuning.bias_before_norm").

        Global settings of the framework are to hold while the session computes, and no longer (:class:`Switches`).
        """
        return []

    def debugging_switches(self) -> dict[str, str]:
        """Return the framework's debugging switches that are on now: how each is set → what it costs."""
        return {}

    # -- recording -----------------------------------------------------------------------------------------------

    # Called where the capability ``recording`` is declared.

    def begin_recording(self, activations: bool) -> None:
        """Note the numbers of the steps from here to ``end_recording``; nothing may be left that costs afterwards.

        Args:
            activations: also the largest absolute value of each layer's output, and of each input that came out of no
                layer, in the order in which they run. What runs in inference regions does not count.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} records nothing")

    def note_gradients(self, optimizer: Any) -> Sequence[str]:
        """Count the optimizer's raw gradients on the device, by ``recording.EDGE_BITS``, and note scale and loss.

        Called between ``begin_recording`` and ``end_recording`` when a window is complete, before ``unscale``. In a
        compiled step it runs while tracing; the trace then returns the counts, and another one is run on steps that
        are not recorded.

        Returns:
            The names of the gradients, as ``gradients`` gives them.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} records nothing")

    def end_recording(self) -> recording.RecordedStep:
        """Look no more; return what was noted, read from the device in one go."""
        raise errors.UnsupportedError(f"backend {self.name!r} records nothing")

    def epsilons(self) -> list[recording.Epsilon]:
        """Return the epsilons of the prepared models' layers and of the optimizers."""
        return []

    # -- whole models --------------------------------------------------------------------------------------------

    # The first two are called where the capability ``float32_weights`` is declared.

    def read_weights(self, model: Any) -> dict[str, Any]:
        """Return name → float32 numpy array of everything in a model that has a floating-point dtype (complex64 of what
        is complex), statistics of normalization included: master weights where there are some, else the model's own
        values, cast.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} does not read weights")

    def write_weights(self, model: Any, weights: Mapping[str, Any]) -> None:
        """Set what :meth:`read_weights` returned, masters and the model's own values alike.

        Args:
            model: a model of this framework.
            weights: its names, all of them, → float32 arrays of its shapes.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} does not write weights")

    def convert_model(self, model: Any, inputs: Sequence[Any], policy: Policy) -> Any:
        """Return a copy of a model for inference whose parameters have ``policy.compute_dtype``; see
        ``Amp.convert_model``. Called where the capability ``convert_model`` is declared, with a policy whose
        ``compute_dtype`` is float16 or bfloat16.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} converts no models")

    # -- tools ---------------------------------------------------------------------------------------------------

    def matmul_shapes(self, models: Sequence[Any]) -> list[MatmulShape]:
        """Return the sizes of the models' matrix products and convolutions, in the order of their layers.

        Called where the capability ``shape_advice`` is declared.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} does not know the sizes of a model's matrix products")

    def peak_memory(self) -> int | None:
        """Return the most bytes that the framework has held on the device so far; None where it keeps no count."""
        return None

    def out_of_memory(self, error: BaseException) -> bool:
        """Tell whether an exception says that memory ran out, on the device or beside it."""
        return isinstance(error, MemoryError)

    def kernel_times(self, run: Callable[[], Any]) -> dict[str, float]:
        """Call ``run`` under the framework's profiler; return name → seconds of each kernel that the device ran.

        Called where the capability ``kernel_profile`` is declared.
        """
        raise errors.UnsupportedError(f"backend {self.name!r} has no profile of the device's kernels")
