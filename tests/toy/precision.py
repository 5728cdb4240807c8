"""The toy's precision: autocast regions and inference."""

from __future__ import annotations

from contextlib import contextmanager

from unifiedamp.backend import PolicySwitcher, Precision, errors, match_layers

from . import autograd as toy


class ToyPrecision(Precision):
    """Regions over ``models``, the list of prepared ones."""

    def __init__(self, policy, models):
        self.policy, self.models = policy, models
        self.inferring = False

    @contextmanager
    def scope(self):
        yield

    def _dtype(self, enabled, policy):
        dtype = (policy or self.policy).compute_dtype if enabled else self.policy.param_dtype
        return dtype if dtype != "float32" else None

    @contextmanager
    def autocast(self, enabled, policy):
        if policy is not None and policy.compute_dtype == "float8":
            raise errors.PolicyNotSupportedError("toy: a region cannot compute in float8")
        before = (toy.state.autocast, toy.state.recording)
        toy.state.autocast, toy.state.recording = self._dtype(enabled, policy), not self.inferring
        modes = [model.training for model in self.models]
        for model in self.models:
            model.training = model.training if self.inferring else True
        try:
            yield
        finally:
            toy.state.autocast, toy.state.recording = before
            for model, mode in zip(self.models, modes, strict=True):
                model.training = mode

    @contextmanager
    def inference(self, models):
        with self.autocast(True, None):
            toy.state.recording, self.inferring, before = False, True, self.inferring
            for model in models:
                model.training = False
            try:
                yield
            finally:
                self.inferring = before


class ToyPolicySwitcher(PolicySwitcher):
    """Regions and prepared models take the dtypes of another policy."""

    def __init__(self, spec, precision, models):
        self.spec, self.precision, self.models = spec, precision, models

    def switch(self, policy):
        self.spec.policy = self.precision.policy = policy
        for model in self.models:
            model.layer_dtypes = match_layers(policy.layer_overrides, model.layers)
            model.output_dtype = policy.output_dtype


def custom_function(target, cast_inputs):
    """Return ``target`` for use inside autocast."""

    def cast(value):
        if isinstance(value, list | tuple):
            return type(value)(map(cast, value))
        if isinstance(value, dict):
            return {name: cast(each) for name, each in value.items()}
        return toy.cast(value, dtype) if isinstance(value, toy.Tensor) and value.data.dtype.kind == "f" else value

    dtype = cast_inputs

    def call(*args, **kwargs):
        before = toy.state.autocast
        if before is None or dtype is None:
            return target(*args, **kwargs)
        toy.state.autocast = None
        try:
            return target(*cast(args), **{name: cast(value) for name, value in kwargs.items()})
        finally:
            toy.state.autocast = before

    return call
