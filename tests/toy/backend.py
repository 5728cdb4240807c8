"""The toy backend: the required roles over :mod:`toy.autograd`, and a reason for each optional one that is missing."""

from __future__ import annotations

from unifiedamp.backend import (
    PRESETS,
    Backend,
    Capabilities,
    Distributed,
    PlanRow,
    Support,
    Unsupported,
    errors,
)

from . import autograd as toy
from . import precision
from .device import ToyDevice
from .ema import ToyAveraging
from .precision import ToyPolicySwitcher, ToyPrecision
from .training import ToyTraining

NO_FLOAT8 = "no linear layer has three products to run in float8"


class ToyBackend(Backend):
    """One session over the toy framework; the classes of its roles can be replaced in a subclass."""

    name = "toy"
    device_class, precision_class, training_class = ToyDevice, ToyPrecision, ToyTraining
    averaging_class, switcher_class = ToyAveraging, ToyPolicySwitcher

    compiler = Unsupported("numpy has nothing to compile with")
    recorder = Unsupported("a toy is looked at by hand")
    weights = Unsupported("a toy has no checkpoints")
    converter = Unsupported("a toy is not deployed")
    layer_shapes = Unsupported("numpy has no Tensor Cores")
    profiler = Unsupported("numpy has no kernels")

    def __init__(self, spec):
        super().__init__(spec)
        spec.check_options([], self.name)
        if spec.device not in (None, "cpu", "cpu:0"):
            raise errors.ConfigError(f"toy: no device {spec.device!r}: it has 'cpu'")
        for policy in spec.policies:
            if policy.compute_dtype == "float8":
                raise errors.PolicyNotSupportedError(f"toy: {NO_FLOAT8} ('{policy}'); nearest: 'mixed_bfloat16'")
            if policy.op_overrides:
                raise errors.UnsupportedError(f"toy has no op_overrides ({', '.join(policy.op_overrides)})")
        self.models: list[toy.Model] = []
        self.optimizers: list[toy.Sgd] = []
        self.device = self.device_class()
        self.precision = self.precision_class(spec.policy, self.models)
        self.training = self.training_class(spec, self.precision, self.models, self.optimizers)
        self.policy_switcher = self.switcher_class(spec, self.precision, self.models)
        self.averaging = self.averaging_class(self.optimizers, self.training.averages)
        self.distributed = Distributed()

    @classmethod
    def default_policy(cls, device):
        return "float32", "numpy has no 16-bit arithmetic"

    @classmethod
    def custom_function(cls, target, cast_inputs):
        return precision.custom_function(target, cast_inputs)

    def declare(self):
        features = {
            "context_form": Support(True),
            "loss_scaling": Support(True),
            "accumulation": Support(True),
            "several_optimizers": Support(True),
            "op_overrides": Support(False, "no list of operations"),
            "layer_overrides": Support(True),
            "master_weights": Support(False, "a toy has no 16-bit weights"),
            "float8": Support(False, NO_FLOAT8),
            "no_device_wait": Support(True),
        }
        policies = {name: Support(True, "emulated by rounding") for name in PRESETS}
        policies["mixed_float8"] = Support(False, NO_FLOAT8)
        return Capabilities("cpu", policies, features)

    def explain(self):
        rows = [PlanRow("autocast", self.spec.policy.compute_dtype, "toy.autograd.state.autocast", "emulated")]
        if self.spec.accumulate_steps > 1:
            rows.append(
                PlanRow("accumulate_steps", str(self.spec.accumulate_steps), "Parameter.grad += ...", "emulated")
            )
        return rows

    def close(self):
        self.training.pending.clear()
        for optimizer in self.optimizers:
            optimizer.hooks = []
            for parameter in optimizer.parameters.values():
                parameter.grad = None
        for model in self.models:
            model.layer_dtypes, model.output_dtype = {}, None
