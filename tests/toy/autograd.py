"""Reverse-mode differentiation over numpy arrays, with dtypes that round: the toy's "framework"."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np


def round_to(array, dtype: str):
    """Round a float array to ``dtype``, held in float32 (bfloat16 has no numpy type)."""
    array = np.asarray(array, np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = array.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(array), np.asarray(rounded, np.uint32).view(np.float32), array)
    return array


class State(threading.local):
    """The framework's thread-local flags: the autocast dtype and whether gradients are recorded."""

    autocast: str | None = None
    recording: bool = False
    training: bool = False


state = State()


class Tensor:
    """An array, its dtype's name and how to send a gradient to its inputs."""

    def __init__(self, data, dtype="float32", inputs: Sequence[Tensor] = (), pull: Callable | None = None, name=""):
        self.data = round_to(data, dtype) if np.asarray(data).dtype.kind == "f" else np.asarray(data)
        self.dtype, self.inputs, self.pull, self.name = dtype, tuple(inputs), pull, name
        self.grad, self.frozen = None, False
        self.hook: Callable | None = None  # called with all nodes of a backward pass that comes here

    @property
    def shape(self):
        return self.data.shape

    def __mul__(self, other: Tensor) -> Tensor:
        return mul(self, other)

    def __add__(self, other: Tensor) -> Tensor:
        return add(self, other)

    def backward(self) -> None:
        """Add d(self)/d(leaf) to each leaf's ``grad``."""
        order, seen = [], set()

        def visit(node):
            if id(node) not in seen:
                seen.add(id(node))
                for one in node.inputs:
                    visit(one)
                order.append(node)

        visit(self)
        for node in order:
            if node.hook is not None:
                node.hook(order)
        with np.errstate(all="ignore"):
            self._send(reversed(order))

    def _send(self, order) -> None:
        grads = {id(self): np.ones_like(self.data)}
        for node in order:
            grad = grads.pop(id(node), None)
            if grad is None:
                continue
            if node.frozen:
                continue
            if node.pull is None:
                node.grad = grad if node.grad is None else node.grad + grad
                continue
            for one, part in zip(node.inputs, node.pull(grad), strict=True):
                if part is not None:
                    part = round_to(part, one.dtype)
                    grads[id(one)] = grads[id(one)] + part if id(one) in grads else part


def op(data, dtype, inputs, pull) -> Tensor:
    return Tensor(data, dtype, inputs, pull) if state.recording else Tensor(data, dtype)


def cast(x: Tensor, dtype: str) -> Tensor:
    return x if x.dtype == dtype else op(x.data, dtype, [x], lambda g: [g])


def unbroadcast(grad, shape):
    while grad.ndim > len(shape):
        grad = grad.sum(0)
    for axis, size in enumerate(shape):
        if size == 1 and grad.shape[axis] != 1:
            grad = grad.sum(axis, keepdims=True)
    return grad


def widest(*tensors: Tensor) -> str:
    kinds = {one.dtype for one in tensors}
    return kinds.pop() if len(kinds) == 1 else "float32"


def matmul(a: Tensor, b: Tensor) -> Tensor:
    if state.autocast:
        a, b = cast(a, state.autocast), cast(b, state.autocast)
    with np.errstate(all="ignore"):
        return op(a.data @ b.data, widest(a, b), [a, b], lambda g: [g @ b.data.T, a.data.T @ g])


def add(a: Tensor, b: Tensor) -> Tensor:
    with np.errstate(all="ignore"):
        return op(a.data + b.data, widest(a, b), [a, b], lambda g: [unbroadcast(g, a.shape), unbroadcast(g, b.shape)])


def mul(a: Tensor, b: Tensor) -> Tensor:
    def pull(g):
        with np.errstate(all="ignore"):
            return [unbroadcast(g * b.data, a.shape), unbroadcast(g * a.data, b.shape)]

    with np.errstate(all="ignore"):
        return op(a.data * b.data, widest(a, b), [a, b], pull)


def relu(a: Tensor) -> Tensor:
    return op(np.maximum(a.data, 0), a.dtype, [a], lambda g: [g * (a.data > 0)])


def total(a: Tensor) -> Tensor:
    a = cast(a, "float32")
    with np.errstate(all="ignore"):
        return op(a.data.sum(), "float32", [a], lambda g: [np.broadcast_to(g, a.shape).astype(np.float32)])


def constant(value) -> Tensor:
    return Tensor(np.float32(value))


def index(a: Tensor, i: int) -> Tensor:
    def pull(g):
        out = np.zeros_like(a.data)
        out[i] = g
        return [out]

    return op(a.data[i], a.dtype, [a], pull)


def normalise(a: Tensor, mean, var) -> Tensor:
    scale = 1 / np.sqrt(var + 1e-5)
    return op((a.data - mean) * scale, a.dtype, [a], lambda g: [g * scale])


def log_softmax_pick(logits: Tensor, labels) -> Tensor:
    """Return mean cross entropy of (batch, classes) logits against integer labels."""
    logits = cast(logits, "float32")
    shifted = logits.data - logits.data.max(1, keepdims=True)
    p = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(p[rows, labels]).mean()

    def pull(g):
        d = p.copy()
        d[rows, labels] -= 1
        return [g * d / len(labels)]

    return op(loss, "float32", [logits], pull)


class Model:
    """Named parameters and a forward function."""

    def __init__(self, parameters: dict[str, Tensor], forward: Callable):
        self.parameters, self.forward, self.training = parameters, forward, True
        self.output_dtype: str | None = None
        self.layer_dtypes: dict[str, str] = {}
        self.layers: list[str] = []

    def __call__(self, x: Tensor) -> Tensor:
        out = self.forward(self, x)
        return cast(out, self.output_dtype) if self.output_dtype else out


class Sgd:
    """Plain SGD with momentum; ``steps`` counts updates."""

    def __init__(self, models, lr, momentum=0.0):
        self.parameters = {}
        for index, model in enumerate(models):
            for name, p in model.parameters.items():
                self.parameters[f"model{index}.{name}" if name in self.parameters else name] = p
        self.lr, self.momentum, self.steps = lr, momentum, 0
        self.slots = {name: np.zeros_like(p.data) for name, p in self.parameters.items()}
        self.hooks: list[Callable] = []  # called before each step

    def step(self) -> None:
        for hook in self.hooks:
            hook(self)
        self.apply({name: p.grad for name, p in self.parameters.items() if p.grad is not None})

    def apply(self, grads) -> None:
        self.steps += 1
        for name, grad in grads.items():
            self.slots[name] = self.momentum * self.slots[name] + grad
            self.parameters[name].data = self.parameters[name].data - np.float32(self.lr) * self.slots[name]


class Adam(Sgd):
    """Adam with the usual constants."""

    def apply(self, grads) -> None:
        self.steps += 1
        for name, grad in grads.items():
            if self.slots[name].shape[:1] != (2,) or self.steps == 1:
                self.slots[name] = np.zeros((2, *grad.shape), np.float32)
            m, v = self.slots[name]
            m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad * grad
            self.slots[name] = np.stack([m, v])
            m, v = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
            self.parameters[name].data = self.parameters[name].data - np.float32(self.lr) * m / (np.sqrt(v) + 1e-8)
