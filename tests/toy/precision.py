"""The toy's precision: autocast regions and inference."""

from __future__ import annotations

from contextlib import contextmanager

from unifiedamp.backend import Precision

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
        policy = policy or self.policy
        return policy.compute_dtype if enabled and policy.compute_dtype != "float32" else None

    @contextmanager
    def autocast(self, enabled, policy):
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


def custom_function(target, cast_inputs):
    """Return ``target`` for use inside autocast."""

    def call(*args):
        before, dtype = toy.state.autocast, cast_inputs
        if before is None or dtype is None:
            return target(*args)
        toy.state.autocast = None
        try:
            return target(*[toy.cast(a, dtype) if isinstance(a, toy.Tensor) else a for a in args])
        finally:
            toy.state.autocast = before

    return call
