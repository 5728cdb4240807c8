"""Dense layers under emulated float8 recipes, whose operands show: one of each product is an identity matrix."""

import numpy as np
import pytest

import unifiedamp as ua
from unifiedamp.conformance.driver import compiled
from unifiedamp.formats import FLOAT_FORMATS
from unifiedamp.formats.rounding import round_to

SIZE = 128
EYE, ZEROS = np.eye(SIZE, dtype=np.float32), np.zeros(SIZE, np.float32)
BFLOAT16, E4M3, E5M2 = (FLOAT_FORMATS[name] for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"))


def uneven(seed):
    """Numbers in bfloat16 whose magnitudes differ by row, by column and from block to block; the largest is 7/2."""
    rng = np.random.default_rng(seed)
    powers = np.exp2(-(np.arange(SIZE) % 5) - rng.integers(0, 4, SIZE))
    values = rng.uniform(-1, 1, (SIZE, SIZE)) * powers[:, None] * np.exp2(-(np.arange(SIZE) // 16 % 3))
    values = np.clip(round_to(values.astype(np.float32), BFLOAT16), -3.5, 3.5)
    values[0, 0] = 3.5
    return values


class Layers:
    """Dense layers under an emulated recipe, the biases of hidden ones 1; the gradient of the output is chosen.

    They are trained with learning rate 0, so that gradients change nothing.
    """

    def __init__(self, harness, recipe, *weights, form="eager", policy=None, **options):
        policy = ua.Policy(compute_dtype="float8", recipe=recipe, emulate=True, **(policy or {}))
        options["backend_options"] = {harness.backend: dict(harness.forms[form])} if harness.forms[form] else None
        try:
            self.amp = ua.Amp(harness.backend, policy, **options)
        except ua.PolicyNotSupportedError as refusal:
            pytest.skip(f"declared: {refusal}")
        self.harness, biases = harness, [ZEROS + 1] * (len(weights) - 1) + [ZEROS]
        with self.amp.scope():
            model = harness.mlp(list(zip(weights, biases, strict=True)))
            optimizer = harness.sgd([model], 0.0)
        self.model, self.optimizer = self.amp.prepare(model, optimizer)
        self._step = compiled(self.amp, form, self._train)

    def backward(self, x, y):
        self.amp.backward(lambda: self.harness.mean_square(self.model(x), y), self.optimizer)

    def _train(self, x, y):
        self.backward(x, y)
        self.amp.step(self.optimizer)

    def call(self, x):
        with self.amp.inference(self.model), self.amp.autocast():
            return np.asarray(self.amp.to_numpy(self.model(self.amp.to_native(x))), np.float32)

    def batch(self, x, gradient):
        with np.errstate(invalid="ignore"):
            target = self.call(x) - gradient * np.float32(gradient.size / 2)
        return self.amp.to_native(x), self.amp.to_native(target)

    def step(self, x, gradient):
        self._step(*self.batch(x, gradient))

    def weight_gradients(self, x, gradient, rounded=True):
        """The gradients of the weights, rounded to bfloat16 or as they are, each of shape (inputs, outputs)."""
        self.backward(*self.batch(x, gradient))
        found = {name: self.amp.to_numpy(each) for name, each in self.amp.gradients(self.optimizer).items()}
        self.amp.discard_step(self.optimizer)
        found = [round_to(each, BFLOAT16) if rounded else each for each in found.values() if each.ndim == 2]
        probe = self.harness.mlp([(np.zeros((2, 3), np.float32), ZEROS[:3])])
        transposes = (3, 2) in [value.shape for value in self.harness.parameters(probe).values()]
        return [each.T if transposes else each for each in found]
