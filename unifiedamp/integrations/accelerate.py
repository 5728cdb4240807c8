"""A session inside Hugging Face Accelerate.

from unifiedamp.integrations.accelerate import AmpAccelerator

accelerator = AmpAccelerator("mixed_float16", gradient_accumulation_steps=2)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any

import torch

from ..errors import ConfigError, UnsupportedError
from ..policy import Policy
from ..session import Amp
from .versions import require

require("accelerate", "1.1", "unifiedamp.integrations.accelerate")

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import SCALER_NAME, extract_model_from_parallel

from . import state
from .host_steps import HostSteps
from .session_scaler import SessionScaler
from .session_source import SessionSource, refuse_strategy

__all__ = ["AmpAccelerator", "attach"]

SUPPORTED = ("NO", "MULTI_CPU", "MULTI_GPU")
"""Kinds of distribution whose gradients lie whole in each process."""


class AmpOptimizer(AcceleratedOptimizer):
    """A prepared optimizer that knows of skipped steps, also of those that a fused kernel skipped."""

    last_step: Any = None

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last step was not applied; may wait for the device."""
        return self.last_step is not None and not self.last_step.applied


class AmpMethods:
    """What an Accelerator does by a session; put before ``Accelerator`` in a class."""

    _unifiedamp: HostSteps
    _unprepared: list[Any]
    scaler: Any
    _models: list[Any]  # Accelerator's

    @property
    def amp(self) -> Amp:
        """The session."""
        return self._unifiedamp.amp

    # -- setting up ----------------------------------------------------------------------------------------------

    def prepare_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Prepare a model: its forward pass runs under the policy, also where another Accelerator has prepared it."""
        if getattr(model, "_is_accelerate_prepared", False) and model not in self._models:
            model = _unprepared(model)
        plain = getattr(model, "_orig_mod", model)  # of torch.compile
        if not getattr(model, "_is_accelerate_prepared", False):
            self._unifiedamp.add_model(plain)
            _run_under_policy(plain, self.amp)
            self._prepare_owned()
        return super().prepare_model(model, *args, **kwargs)  # type: ignore[misc]  # Accelerator's

    def prepare_optimizer(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Prepare an optimizer, which may come before its model."""
        wrapped = super().prepare_optimizer(optimizer, *args, **kwargs)  # type: ignore[misc]  # Accelerator's
        wrapped.__class__ = AmpOptimizer
        self._unprepared.append(_plain(wrapped))
        self._prepare_owned()
        return wrapped

    def _prepare_owned(self) -> None:
        steps = self._unifiedamp
        owned = {id(param) for model in steps.models for param in model.parameters()}
        ready = [each for each in self._unprepared if all(id(p) in owned for p in _params(each))]
        steps.add_optimizers(ready)
        self._unprepared = [each for each in self._unprepared if not any(each is one for one in ready)]

    def free_memory(self, *objects: Any) -> Any:
        """Forget what was prepared, for another training."""
        self._unprepared = []
        self._unifiedamp.use_optimizers([])
        return super().free_memory(*objects)  # type: ignore[misc]  # Accelerator's

    def load_state(self, input_dir: Any = None, *args: Any, **kwargs: Any) -> None:
        """Load a checkpoint, also that of an Accelerator which scales no loss."""
        load = super().load_state  # type: ignore[misc]  # Accelerator's
        if input_dir is None or (Path(input_dir) / SCALER_NAME).exists():
            load(input_dir, *args, **kwargs)
            return
        scaler, self.scaler = self.scaler, None
        try:
            load(input_dir, *args, **kwargs)
        finally:
            self.scaler = scaler
        state.warn_lacking_scale(self.amp)

    # -- one step ------------------------------------------------------------------------------------------------

    @contextmanager
    def autocast(self, autocast_handler: Any = None) -> Iterator[None]:
        """Run a region under the policy; a handler with ``enabled=False`` runs it without."""
        with self.amp.autocast(enabled=getattr(autocast_handler, "enabled", True)):
            yield

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Scale a loss and differentiate it, divided by the number of micro-batches."""
        if self._unprepared:
            self._unifiedamp.add_optimizers(self._unprepared)
            self._unprepared = []
        loss = loss / self.gradient_accumulation_steps  # type: ignore[attr-defined]  # Accelerator's
        if kwargs.keys() - {"retain_graph"}:
            self._unifiedamp.backward(loss, functools.partial(_differentiate, kwargs))
        else:
            self._unifiedamp.backward(loss, retain_graph=bool(kwargs.get("retain_graph")))

    def join_uneven_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """Train on other numbers of batches in each process, without a loss scale.

        Raises:
            UnsupportedError: losses are scaled.
        """
        if self.amp.loss_scale_settings.enabled and self.num_processes > 1:  # type: ignore[attr-defined]  # Accelerator's
            raise UnsupportedError(
                "accelerator.join_uneven_inputs: processes skip a step together under a loss scale, and one that has "
                "run out of batches would not answer the others; give all as many batches "
                "(Accelerator's even_batches=True), or use a policy without a loss scale, such as 'mixed_bfloat16'"
            )
        return super().join_uneven_inputs(*args, **kwargs)  # type: ignore[misc]  # Accelerator's

    @property
    def _accumulating(self) -> bool:
        return not self.gradient_state.sync_gradients  # type: ignore[attr-defined]  # Accelerator's

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Divide gradients by the scale, once; does nothing inside an accumulation window."""
        if self._accumulating:
            return
        given = optimizer if isinstance(optimizer, (list, tuple)) or optimizer is None else [optimizer]
        self._unifiedamp.unscale_owners(None if given is None else [p for each in given for p in _params(each)])

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clip the norm of true gradients; return the norm before, None inside an accumulation window."""
        if self._accumulating:
            return None
        params = self._unifiedamp.trained(parameters)
        self._unifiedamp.unscale_owners(params)
        return torch.nn.utils.clip_grad_norm_(params, max_norm, norm_type=norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clamp true gradients; does nothing inside an accumulation window."""
        if not self._accumulating:
            params = self._unifiedamp.trained(parameters)
            self._unifiedamp.unscale_owners(params)
            torch.nn.utils.clip_grad_value_(params, clip_value)


class AmpAccelerator(AmpMethods, Accelerator):
    """An ``Accelerator`` that trains by a session.

    Schedulers are held on every skipped step, those of fused optimizers included. Clipping unscales the optimizers
    whose parameters it is given, and no other.

    Args:
        session: a ``ua.Amp`` on torch; or the policy of one that is made on the accelerator's device.
        **options: arguments of ``Accelerator`` and, unless a session is given, of ``ua.Amp``, such as ``loss_scale``.

    Raises:
        WrongObjectError: a session of another backend.
        ConfigError: settings beside a session, or ones that are the accelerator's own; mixed precision set twice.
        UnsupportedError: DeepSpeed, FSDP and other ways of distributing that the session cannot follow.
    """

    def __init__(self, session: Amp | Policy | str | None = None, **options: Any) -> None:
        own = set(inspect.signature(Accelerator).parameters)
        given = {name: options[name] for name in options if name in own}
        source = SessionSource("AmpAccelerator", session, {k: v for k, v in options.items() if k not in own})
        if isinstance(session, Amp) and source.amp.backend.device.name == "cpu":
            given.setdefault("cpu", True)
        super().__init__(**given)
        _begin(self, source, "AmpAccelerator")


def attach(accelerator: Any, session: Amp | Policy | str | None = None, **settings: Any) -> Any:
    """Make an ``Accelerator`` that has prepared nothing yet train by a session; return it.

    Args:
        accelerator: of any class.
        session, **settings: see :class:`AmpAccelerator`.

    Raises:
        ConfigError, WrongObjectError, UnsupportedError: see :class:`AmpAccelerator`.
    """
    source = SessionSource("attach", session, settings)
    return attach_source(accelerator, source)


def attach_source(accelerator: Any, source: SessionSource) -> Any:
    """Do what :func:`attach` does."""
    kind = type(accelerator)
    if isinstance(accelerator, AmpMethods):
        raise ConfigError("attach: this Accelerator has a session already")
    if accelerator._models or accelerator._optimizers:
        raise ConfigError(
            "attach: this Accelerator has prepared a model or an optimizer already, which would train without the "
            "session; call attach before accelerator.prepare, and before train and evaluate of a Trainer"
        )
    _begin(accelerator, source, "attach")
    accelerator.__class__ = AmpAccelerator if kind is Accelerator else type(kind.__name__, (AmpMethods, kind), {})
    return accelerator


def _begin(accelerator: Any, source: SessionSource, where: str) -> None:
    kind = accelerator.distributed_type.value
    if kind not in SUPPORTED:
        refuse_strategy(where, f"distributed_type {kind}", f"one process, or DistributedDataParallel ({SUPPORTED})")
    if str(accelerator.mixed_precision) != "no":
        raise ConfigError(
            f"{where}: precision is set twice: the session's policy, and mixed_precision="
            f"{str(accelerator.mixed_precision)!r} of the Accelerator (an argument, `accelerate launch`, "
            "ACCELERATE_MIXED_PRECISION, or an Accelerator made before in this process); leave one of them out"
        )
    _refuse_handlers(where, accelerator)
    amp, step = source.begin(accelerator.device), "the step() of what accelerator.prepare returned"
    accelerator._unifiedamp = HostSteps(amp, "accelerator.backward(loss)", step)
    accelerator._unifiedamp.use_optimizers([])  # of an accelerator before
    accelerator._unprepared = []
    accelerator.scaler = _NotingScaler(accelerator._unifiedamp, accelerator)


def _refuse_handlers(where: str, accelerator: Any) -> None:
    """Refuse settings of a native scaler and of native autocasting, which would have no effect."""
    advice = {
        "scaler_handler": "pass loss_scale=ua.DynamicLossScale(...)",
        "autocast_handler": "choose the policy, or accelerator.autocast(AutocastKwargs(enabled=False)) around code",
    }
    for name, instead in advice.items():
        handler = getattr(accelerator, name, None)
        if handler is not None:
            kind = type(handler).__name__
            raise ConfigError(f"{where}: {kind} in kwargs_handlers has no effect beside a session; {instead} instead")


class _NotingScaler(SessionScaler):
    """A scaler that tells the prepared optimizer of the outcome of its step."""

    def __init__(self, steps: HostSteps, accelerator: Any) -> None:
        super().__init__(steps)
        self._accelerator = accelerator

    def step(self, optimizer: Any, closure: Any = None, **kwargs: Any) -> Any:
        """See ``SessionScaler``."""
        loss = None if closure is None else closure()
        outcome = self._steps.step(optimizer)
        for wrapped in self._accelerator._optimizers:
            if _plain(wrapped) is optimizer:
                wrapped.last_step = outcome
        return outcome if closure is None else loss


def _unprepared(model: torch.nn.Module) -> torch.nn.Module:
    """Return a model without its wrapper, and without what another Accelerator made of its forward pass."""
    plain: torch.nn.Module = extract_model_from_parallel(model, keep_fp32_wrapper=False)
    vars(getattr(plain, "_orig_mod", plain)).pop("_is_accelerate_prepared", None)
    return plain


def _run_under_policy(model: torch.nn.Module, amp: Amp) -> None:
    """Run the model's forward pass in a region, so that ``accelerator.unwrap_model`` can undo it."""
    own = getattr(model.forward, "__func__", None)  # of the class: a copy of the model must not call this one's
    run: Callable[..., Any] = own or functools.wraps(model.forward)(lambda _, *args, **kwargs: given(*args, **kwargs))
    given = model.forward

    @functools.wraps(run)
    def under_policy(self: Any, *args: Any, **kwargs: Any) -> Any:
        with amp.autocast():
            return run(self, *args, **kwargs)

    model._original_forward = given  # type: ignore[assignment]  # where Accelerate keeps it
    model.forward = MethodType(under_policy, model)


def _differentiate(kwargs: Any, loss: Any) -> None:
    loss.backward(**kwargs)


def _plain(optimizer: Any) -> Any:
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _params(optimizer: Any) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]
