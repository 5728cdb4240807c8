"""What a backend supplies so that the suite can drive it with its framework's own means, bypassing the layer."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from unifiedamp.backend import Capabilities, required
from unifiedamp.config import plugins
from unifiedamp.errors import ConfigError
from unifiedamp.loss_scale import LossScale
from unifiedamp.policy import Policy

from .optional import Array as Array
from .optional import OptionalHarness


@functools.cache
def load_harness(name: str) -> Harness:
    """Return the harness that a backend's plugin names.

    Raises:
        ConfigError: the plugin names none, or the module holds no ``harness``.
    """
    module = plugins.load_plugin(name).harness
    if not module:
        raise ConfigError(f"backend {name!r} names no conformance harness; give its BackendPlugin(harness='module')")
    found = getattr(importlib.import_module(module), "harness", None)
    if not isinstance(found, Harness):
        raise ConfigError(f"{module} holds no object 'harness' of class unifiedamp.conformance.harness.Harness")
    return found


class Harness(OptionalHarness):
    """The native objects that the suite needs. Everything here is plain framework code: no unifiedamp.

    ``OptionalHarness`` has more of them, which may be left out.

    Attributes:
        backend: the backend's name.
        forms: the forms a step is tested in → ``backend_options`` of the session ("eager", and what begins with it, is
            run as it is, every other form through ``amp.compile``, in the mode that it is named after, if it is).
        forms_that_warm_up: those whose first calls run other kernels than later ones: a run that goes on from a saved
            state is equal to rounding, and not bit for bit.
        scaling_policies: mixed policies that run on this machine with a loss scaler ("mixed_bfloat16" at least).
        pure_policies: "float16" and "bfloat16" → the policy in which the suite keeps parameters so, with the overrides
            without which it does not run here; what is refused all the same is skipped by its reason.
        masters_follow_parameters: whether the next call takes over what is set natively in parameters that have master
            weights; False where it is lost at the next step.
        overrides_reach_run_op: whether op overrides act on whatever runs in a region; False where they act on the
            layers of prepared models alone.
        float8_emulation: ``backend_options`` under which ``mixed_float8`` runs on any device, for a backend that
            declares the feature ``float8``.
        emulated_parameters: dtypes of 16-bit parameters that policies with ``emulate`` may have, for a backend that
            declares the feature ``emulation``; others are refused.
        low_precision_op: an operation that :meth:`run_op` knows and that mixed policies run in their compute dtype.
    """

    backend: ClassVar[str]
    forms: Mapping[str, Mapping[str, Any]] = {"eager": {}, "compiled": {}}
    forms_that_warm_up: Sequence[str] = ()
    scaling_policies: Sequence[str] = ("mixed_bfloat16",)
    pure_policies: Mapping[str, str | Policy] = {"float16": "float16", "bfloat16": "bfloat16"}
    float8_emulation: Mapping[str, Any] = {}
    emulated_parameters: Sequence[str] = ("float16", "bfloat16")
    low_precision_op: ClassVar[str] = "matmul"
    masters_follow_parameters: ClassVar[bool] = True
    overrides_reach_run_op: ClassVar[bool] = True

    def capabilities(self) -> Capabilities:
        """Return what the backend declares on its default device."""
        return plugins.backend_info(self.backend).capabilities

    def file(self) -> str:
        """Return the file this harness is written in; ``expected_failures.toml`` is looked for beside it."""
        return str(sys.modules[type(self).__module__].__file__)

    @required
    def probe(self, values: Sequence[float]) -> Any:
        """Return a model with float32 parameters ``w0``, ``w1``, … of shape (1,) and these values, all trainable.

        Called with a native float32 vector ``x`` of the same length it returns the scalar ``sum(w_i * x_i)`` in
        float32, whatever the policy: the gradient of ``w_i`` is exactly ``x_i``, so a test injects inf through ``x``.
        """

    @required
    def mlp(self, weights: Sequence[tuple[Array, Array]]) -> Any:
        """Return a model of dense layers with these float32 (weight, bias) pairs, ReLU between, named ``layer0`` ….

        Weights have shape (inputs, outputs). It maps (batch, inputs) to (batch, outputs).
        """

    @required
    def convnet(self, seed: int) -> Any:
        """Return a small model of convolution, batch norm, ReLU, flatten and a dense layer, for inputs that
        :meth:`image_batch` gives: layers named ``conv``, ``norm``, ``head``.
        """

    @required
    def image_batch(self, array: Array) -> Array:
        """Return a (batch, 8, 8, 1) numpy array in the layout that :meth:`convnet` takes."""

    @required
    def sgd(self, models: Sequence[Any], learning_rate: float, momentum: float = 0.0) -> Any:
        """Return the framework's own SGD over the models' trainable parameters."""

    @required
    def adam(self, models: Sequence[Any], learning_rate: float) -> Any:
        """Return the framework's own Adam (beta 0.9 and 0.999, epsilon 1e-8)."""

    def left_to_prepare(self) -> AbstractContextManager[None]:
        """Return a context: optimizers that are made inside have no variables before ``amp.prepare``, where the
        framework's optimizers are built over their parameters.
        """
        return nullcontext()

    @required
    def mean_square(self, output: Any, target: Any) -> Any:
        """Return the mean squared error, a native scalar, computed by framework operations."""

    @required
    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        """Return the mean softmax cross entropy against integer labels, a native scalar."""

    @required
    def parameters(self, model: Any) -> dict[str, Array]:
        """Return name → float64 copy of each trainable parameter; names as ``amp.gradients`` gives them."""

    @required
    def optimizer_steps(self, optimizer: Any) -> int:
        """Return the framework's own count of updates (``iterations``, ``num_update``, Adam's ``step``); 0 before the
        first. For an optimizer that keeps no count, raise NotImplementedError.
        """

    @required
    def set_gradients(self, amp: Any, optimizer: Any, values: Mapping[str, Array]) -> None:
        """Overwrite the window's (scaled) gradients by name, behind the layer's back."""

    def interrupted_update(self, optimizer: Any, error: BaseException) -> AbstractContextManager[None] | None:
        """Return a context in which the framework's own update of a prepared ``optimizer`` (made by :meth:`sgd`)
        changes the first parameter alone and then raises ``error``, in eager steps; None for a framework whose updates
        make new values and change nothing in place.
        """
        raise NotImplementedError(f"the harness of {self.backend!r} has no interrupted_update")

    def native_backward(self, loss: Any) -> bool:
        """Differentiate ``loss`` by the framework's own call, as a loop does that forgets the session's.

        Returns:
            True. False, having done nothing, where the framework refuses to differentiate this loss once more, and for
            one without a call that adds a loss's gradients to the parameters (they are returned instead), which is the
            default; tests that need one are then skipped.
        """
        return False

    def native_step(self, optimizer: Any) -> bool:
        """Apply the gradients that are there by the framework's own call on a prepared ``optimizer``.

        Returns:
            True. False, having done nothing, for a framework without such a call, which is the default; tests that
            need one are then skipped.
        """
        return False

    @required
    def run_op(self, op: str) -> str | None:
        """Run one operation of the vocabulary on float32 inputs of at least (8, 8), in the present autocast region,
        and return the dtype name it computed in (of its output); None when the framework has no such operation.
        """

    @required
    def global_state(self) -> Any:
        """Return something comparable that holds every piece of process-wide and thread-local state a policy could
        leave changed (global dtype policy, patched attributes, autocast flags, numpy attributes).
        """

    @required
    def dtype_of(self, tensor: Any) -> str:
        """Return a native tensor's dtype name ("float32", "float16", "bfloat16")."""

    def ratio(self, epsilon: float) -> Any:
        """Return a model of one dense layer, named ``dense``, and after it a layer of your own named ``ratio``, which
        divides by the sum of absolute values plus its attribute ``epsilon``. Needed where ``recording`` is declared.
        """
        raise NotImplementedError(f"the harness of {self.backend!r} declares recording but has no ratio")

    def device_run(self, gradients: Sequence[float], loss_scale: LossScale) -> list[tuple[float, int]]:
        """Run one step on two devices (or ranks) that disagree. Needed where ``several_devices`` is declared.

        Args:
            gradients: the raw true gradient of a parameter of value 1 on each of the two devices.
            loss_scale: the session's loss scale; the optimizer is SGD with learning rate 0.1.

        Returns:
            For each device, the parameter afterwards and the session's count of skipped steps.
        """
        raise NotImplementedError(f"the harness of {self.backend!r} declares several_devices but has no device_run")
