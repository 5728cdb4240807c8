"""The precision plugin of a Lightning ``Trainer``, for both names that Lightning is installed under."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from ..errors import UnsupportedError
from ..loss_scale import LossScale
from ..policy import Policy
from ..session import Amp
from . import state
from .dtypes import DefaultDtype, cast_floats, low_param_dtype, precision_name
from .host_steps import HostSteps
from .session_source import SessionSource, refuse_strategy

WHERE = "AmpPrecision"
UNSUPPORTED = ("DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy", "XLAStrategy", "SingleDeviceXLAStrategy")
NATIVE_KEYS = ("MixedPrecision", "native_amp_scaling_state")
"""Where Lightning's own plugin has its scaler in a checkpoint, now and in old versions."""


class TrainerPrecision:
    """The plugin without Lightning's ``Precision``, which ``AmpPrecision`` adds; its arguments are documented there."""

    def __init__(self, session: Amp | Policy | str | None = None, **settings: Any) -> None:
        super().__init__()
        self._source = SessionSource(WHERE, session, settings)
        self._steps: HostSteps | None = None
        self._connected: list[Any] | None = None

    def __repr__(self) -> str:
        return f"{WHERE}({str(self._source.policy)!r})"

    @property
    def amp(self) -> Amp:
        """The session; ``StepOrderError`` before the trainer has its device, unless you passed one."""
        return self._source.amp

    @property
    def precision(self) -> str:
        """Lightning's name for the policy."""
        return precision_name(self._source.policy)

    @property
    def scaler(self) -> Any:
        """The session's ``GradScaler``; None without loss scaling."""
        return None if self._steps is None else self.amp.backend.interop.scaler

    # -- setting up ----------------------------------------------------------------------------------------------

    def convert_module(self, module: Any) -> Any:
        """Prepare the LightningModule, before it is wrapped."""
        self._begin(module).add_model(module)
        return module

    def _begin(self, module: Any) -> HostSteps:
        strategy = module.trainer.strategy
        check_strategy(strategy)
        amp = self._source.begin(strategy.root_device)
        if self._steps is None:
            self._steps = HostSteps(amp, "self.manual_backward(loss)", "the step() of self.optimizers()")
        return self._steps

    def connect(self, model: Any, optimizers: list[Any], lr_schedulers: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        """Prepare the optimizers of a run, and hold its schedulers on skipped steps."""
        if self._steps is not None:
            self._steps.use_optimizers([each for each in optimizers if _is_real(each)])
            self._hold(self._steps, lr_schedulers)
        self._connected = optimizers
        return model, optimizers, lr_schedulers

    @staticmethod
    def _hold(steps: HostSteps, lr_schedulers: list[Any]) -> None:
        for config in lr_schedulers:
            steps.hold(config.scheduler)

    def _connect_new(self, model: Any) -> None:
        """Go on with optimizers that were made during the run, as by ``strategy.setup_optimizers``."""
        strategy = model.trainer.strategy
        if strategy.optimizers is not self._connected:
            self._running.exchange_optimizers([each for each in strategy.optimizers if _is_real(each)])
            self._hold(self._running, strategy.lr_scheduler_configs)
            self._connected = strategy.optimizers

    # -- one step ------------------------------------------------------------------------------------------------

    def convert_input(self, data: Any) -> Any:
        """Cast a batch to the dtype of 16-bit parameters."""
        dtype = low_param_dtype(self._source.policy)
        return data if dtype is None else cast_floats(data, dtype)

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return a region under the policy."""
        dtype = low_param_dtype(self._source.policy)
        if dtype is None:
            return self.amp.autocast()
        return _both(DefaultDtype(dtype), self.amp.autocast())

    def backward(self, tensor: torch.Tensor, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Differentiate the scaled loss, through the LightningModule's ``backward`` where it has its own."""
        self._connect_new(model)
        own = type(model).backward.__qualname__ != "LightningModule.backward"
        if own or args or kwargs.keys() - {"retain_graph"}:
            self._running.backward(tensor, lambda scaled: model.backward(scaled, *args, **kwargs))
        else:
            self._running.backward(tensor, retain_graph=bool(kwargs.get("retain_graph")))

    @property
    def _running(self) -> HostSteps:
        if self._steps is None:
            raise UnsupportedError(f"{WHERE}: the strategy did not set the plugin up, and cannot be used with it")
        return self._steps

    def optimizer_step(self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Run the closure, unscale, clip, and apply or skip the step.

        Returns:
            What the closure returned; where that is None, the ``StepResult``.
        """
        if kwargs:
            raise UnsupportedError(f"{WHERE}: optimizer.step takes a closure alone, got {', '.join(kwargs)}")
        self._connect_new(model)
        loss = closure()
        if not _is_real(optimizer):
            return loss
        if model.automatic_optimization and (loss is None or optimizer not in self._running.pending()):
            return self._leave_out(optimizer, model)
        self._running.unscale(optimizer)
        self._after_closure(model, optimizer)  # type: ignore[attr-defined]  # Lightning's hooks and clipping
        outcome = self._running.step(optimizer)
        return outcome if loss is None else loss

    def _leave_out(self, optimizer: Any, model: Any) -> None:
        """Leave out a step whose ``training_step`` returned None, with what its window held; and one without a backward
        pass, in the epoch in which ``StochasticWeightAveraging`` computes batch norms.
        """
        self._running.discard(optimizer)
        self._after_closure(model, optimizer)  # type: ignore[attr-defined]  # as Lightning does

    def clip_gradients(self, optimizer: Any, clip_val: float = 0.0, gradient_clip_algorithm: Any = "norm") -> None:
        """Clip the true gradients; also in manual optimization, and of fused optimizers."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # a LightningOptimizer's
        if clip_val <= 0 or (self.amp.loss_scale_settings.enabled and optimizer not in self._running.pending()):
            return
        if getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm) == "value":
            self._running.clip_value(optimizer, clip_val)
        else:
            self._running.clip_norm(optimizer, clip_val)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the session's state, master weights included."""
        return {} if self._steps is None else state.dump(self.amp, self._steps.models)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the session's state."""
        state.load(self.amp, self._running.models, state_dict)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the scale also where Lightning's own plugin looks for it."""
        native = {key: value for key, value in self.state_dict().items() if key not in (state.SESSION, state.MASTERS)}
        if native:
            checkpoint[NATIVE_KEYS[0]] = native

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the scale of a run under Lightning's own plugin, where the checkpoint is of one."""
        if type(self).__qualname__ in checkpoint:
            return
        native = next((checkpoint[key] for key in NATIVE_KEYS if checkpoint.get(key)), None)
        settings: LossScale = self.amp.loss_scale_settings
        if native is not None:
            self.load_state_dict(native)
        elif settings.enabled:
            state.warn_lacking(self.amp, f"loss scale: the run goes on from {settings.first_scale:g}")


@contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with outer, inner:
        yield


def check_strategy(strategy: Any) -> None:
    """Refuse a strategy that keeps parameters or gradients where the session cannot follow.

    Raises:
        UnsupportedError: naming it, and those that work.
    """
    names = {kind.__name__ for kind in type(strategy).__mro__}
    if names & set(UNSUPPORTED):
        refuse_strategy(WHERE, type(strategy).__name__, "a single device or DDPStrategy")


def _is_real(optimizer: Any) -> bool:
    """Return whether an optimizer is not Lightning's stand-in for none."""
    return type(optimizer).__name__ != "_MockOptimizer"
