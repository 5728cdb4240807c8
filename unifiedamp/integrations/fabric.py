"""A session inside Lightning Fabric.

from unifiedamp.integrations.fabric import AmpPrecision

fabric = Fabric(plugins=[AmpPrecision("mixed_float16")])
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..errors import StepOrderError, UnsupportedError
from ..policy import Policy
from ..session import Amp
from .versions import require

require("lightning", "2.5.3", "unifiedamp.integrations.fabric")

from lightning.fabric.plugins.precision import Precision

from . import state
from .dtypes import low_param_dtype, precision_name
from .host_steps import HostSteps
from .session_source import SessionSource, refuse_strategy

__all__ = ["AmpPrecision"]

WHERE = "AmpPrecision"
KNOWN = "a single device or DDPStrategy"


class AmpPrecision(Precision):
    """A precision plugin of Fabric that trains by a session.

    ``optimizer.step()`` returns the ``StepResult``, fused optimizers are clipped, and :meth:`hold` holds a scheduler on
    skipped steps. Save it with the model: ``fabric.save(path, {"model": model, "optimizer": ..., "amp": plugin})``.

    Args:
        session: a ``ua.Amp`` on torch; or the policy of one that is made on the device of the first model.
        **settings: further arguments of ``ua.Amp``, such as ``loss_scale``, unless it is given.

    Raises:
        WrongObjectError: a session of another backend.
        ConfigError: settings beside a session, or ones that are Fabric's own.
    """

    def __init__(self, session: Amp | Policy | str | None = None, **settings: Any) -> None:
        self._source = SessionSource(WHERE, session, settings)
        self._steps: HostSteps | None = None
        self._new: list[torch.nn.Module] = []

    def __repr__(self) -> str:
        return f"{WHERE}({str(self._source.policy)!r})"

    @property
    def amp(self) -> Amp:
        """The session; ``StepOrderError`` before the first forward pass, unless you passed one."""
        return self._source.amp

    @property
    def precision(self) -> str:
        """Fabric's name for the policy."""
        return precision_name(self._source.policy)

    def hold(self, scheduler: Any) -> Any:
        """Return the scheduler; its ``step`` does nothing where every step since its last one was skipped."""
        self._running().hold(scheduler)
        return scheduler

    def add_optimizers(self, *optimizers: Any) -> None:
        """Prepare optimizers now; otherwise each is prepared by its first step.

        Needed before a checkpoint with master weights is loaded: optimizers then keep their state in float32.
        """
        self._running().add_optimizers([getattr(each, "optimizer", each) for each in optimizers])

    # -- setting up ----------------------------------------------------------------------------------------------

    def convert_module(self, module: Any) -> Any:
        """Note a model that Fabric sets up; parameters of 16 bits are cast now, before it is wrapped."""
        self._new.append(module)
        if low_param_dtype(self._source.policy) is not None:
            self._running()
        return module

    def _running(self) -> HostSteps:
        """Return the steps, with every model prepared: Fabric has moved it to its device by the first call."""
        if not self._new and self._steps is not None:
            return self._steps
        param = next((param for module in self._new for param in module.parameters()), None)
        cast_later = low_param_dtype(self._source.policy) is None
        amp = self._source.begin(param.device if param is not None and cast_later else None)
        if self._steps is None:
            self._steps = HostSteps(amp, "fabric.backward(loss)", "the step() of what fabric.setup returned")
        while self._new:
            _check_parameters(self._new[0])
            self._steps.add_model(self._new[0])
            self._new.pop(0)
        return self._steps

    # -- one step ------------------------------------------------------------------------------------------------

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return a region under the policy."""
        return self._running().amp.autocast()

    def backward(self, tensor: torch.Tensor, model: Any, *args: Any, **kwargs: Any) -> None:
        """Differentiate the scaled loss."""
        if args or kwargs.keys() - {"retain_graph"}:
            self._running().backward(tensor, functools.partial(_differentiate, args, kwargs))
        else:
            self._running().backward(tensor, retain_graph=bool(kwargs.get("retain_graph")))

    def optimizer_step(self, optimizer: Any, closure: Any = None, **kwargs: Any) -> Any:
        """Run the closure, if any, and apply or skip the step.

        Returns:
            What the closure returned; without one, the ``StepResult``.
        """
        if kwargs:
            raise UnsupportedError(f"{WHERE}: optimizer.step takes a closure alone, got {', '.join(kwargs)}")
        if not isinstance(optimizer, torch.optim.Optimizer):
            refuse_strategy(WHERE, f"the strategy of a {type(optimizer).__name__}", KNOWN)
        loss = None if closure is None else closure()
        outcome = self._running().step(optimizer)
        return outcome if closure is None else loss

    def unscale_gradients(self, optimizer: Any) -> None:
        """Divide the gradients by the scale, before Fabric clips them."""
        self._running().unscale(optimizer)

    def main_params(self, optimizer: Any) -> list[torch.Tensor]:
        """Return what Fabric clips.

        Fabric's clipping refuses inf by default: where the step will be skipped for it, it is given a zero instead.
        """
        steps = self._running()
        if optimizer in steps.pending() and steps.found_inf(optimizer):
            stand_in = torch.zeros(1, requires_grad=True)
            stand_in.grad = torch.zeros(1)
            return [stand_in]
        return [param for group in optimizer.param_groups for param in group["params"]]

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the session's state, master weights included."""
        steps = self._running()
        return state.dump(steps.amp, steps.models)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the session's state, or that of Fabric's own plugin or of a ``GradScaler``.

        Raises:
            StepOrderError: there are master weights, and no optimizer is known that trains them.
        """
        steps = self._running()
        if self.amp.backend.spec.master_weights and not steps.optimizers:
            raise StepOrderError(
                f"{WHERE}: with master_weights, call plugin.add_optimizers(optimizer) after fabric.setup and before "
                "fabric.load; the optimizer's state would be rounded to 16 bits"
            )
        state.load(steps.amp, steps.models, state_dict)


def _differentiate(args: Any, kwargs: Any, loss: Any) -> None:
    loss.backward(*args, **kwargs)


def _check_parameters(module: torch.nn.Module) -> None:
    if any(type(param).__name__ == "DTensor" or hasattr(param, "device_mesh") for param in module.parameters()):
        refuse_strategy(WHERE, "a strategy that shards parameters (ModelParallelStrategy, FSDPStrategy)", KNOWN)
