"""Calls that mypy and pyright take or refuse: a line marked ``# wrong`` is an error of both, and no other line is."""

from collections.abc import Callable
from typing import assert_type

import torch
from torch import Tensor, nn

import unifiedamp as ua
from unifiedamp.names import CompileMode, PolicyName, StepReason

model, other = nn.Linear(2, 2), nn.Sequential()
sgd, adam = torch.optim.SGD(model.parameters()), torch.optim.Adam(other.parameters())
amp = ua.Amp("torch", "mixed_bfloat16")

# What prepare is given, it returns.
assert_type(amp.prepare(model), nn.Linear)
assert_type(amp.prepare(model, sgd), tuple[nn.Linear, torch.optim.SGD])
assert_type(
    amp.prepare(model, sgd, other, adam, model, sgd, other, adam),
    tuple[
        nn.Linear, torch.optim.SGD, nn.Sequential, torch.optim.Adam,
        nn.Linear, torch.optim.SGD, nn.Sequential, torch.optim.Adam,
    ],
)  # fmt: skip
one, *rest = amp.prepare(model, other, *[adam])
assert_type(one, nn.Linear)
amp.prepare()  # wrong


# Compiled functions and models keep their types.
@amp.compile
def step(x: Tensor, *, scale: float = 1.0) -> tuple[Tensor, int]:
    return x * scale, 1


@amp.compile(mode="max")
def faster(x: Tensor) -> Tensor:
    return x


assert_type(step(torch.ones(1), scale=2.0), tuple[Tensor, int])
assert_type(faster(torch.ones(1)), Tensor)
assert_type(amp.compile(model), nn.Linear)
step("text")  # wrong
step(torch.ones(1), factor=2.0)  # wrong
amp.compile(step, mode="fastest")  # wrong

# A step.
loss = torch.ones(())
with amp.scale_loss(loss, [sgd, adam]) as scaled:
    assert_type(scaled.value, Tensor)
    scaled.backward(retain_graph=True)
assert_type(amp.backward(lambda: loss, sgd), Tensor)
result = amp.step(sgd)
assert_type(result, ua.StepResult)
assert_type(result.applied, bool)
assert_type(result.reason, StepReason)
assert_type(result.scale, float)
result.reason == "aplied"  # wrong  # noqa: B015

# Names that are known, and text that plugins and policies have.
ua.Amp("a plugin", "mixed_float16;ops=softmax:float32", loss_scale="static(scale=8.0)")
ua.Amp("torch", ua.Policy(), loss_scale=8, tuning="fast", compile="off")
ua.Amp("torch", loss_scale={"initial_scale": 8.0}, tuning={"tf32": True})
ua.Amp("torch", loss_scale=ua.DynamicLossScale(), tuning=ua.Tuning(tf32=True))
ua.Amp(3)  # wrong
ua.Amp("torch", policy=3)  # wrong
ua.Amp("torch", compile="maximal")  # wrong
ua.Amp("torch", tuning="faster")  # wrong
ua.Amp("torch", loss_scale=[8])  # wrong
amp.to_native([1.0], dtype="int8")  # wrong
policy: PolicyName = "mixed_float61"  # wrong
mode: CompileMode = "max"
text: str = input()
ua.Amp(text, text, compile=mode)


@ua.amp_function(cast_inputs="float32")
def custom(x: Tensor) -> Tensor:
    return x


made: Callable[[Tensor], Tensor] = custom
assert_type(ua.amp_function(custom)(torch.ones(1)), Tensor)
assert_type(amp.explain().backend, str)
assert_type(amp.loss_scale, float)
