"""The scaled loss and the gradients it gives."""

# ruff: noqa: D102 (the role says what each method means, the class what is wrong with it)

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from unifiedamp.backend import Backend, ScaledLoss, SessionSpec

from .registry import TrainingFault, fault

TRACE = "test_canonical_trace"
CLIP = "test_clip_grad_norm_sees_true_gradients"


class _OtherScale(TrainingFault):
    """Scales losses by another number than the scale."""

    def _other(self) -> float:
        raise NotImplementedError

    @contextmanager
    def _with(self) -> Iterator[None]:
        state = self.read_state()
        if not self.backend.spec.loss_scale.enabled:
            yield
            return
        self.write_state(replace(state, scale=self._other()))
        try:
            yield
        finally:
            self.write_state(state)

    @contextmanager
    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> Iterator[ScaledLoss]:
        with self._with(), self.inner.scale_loss(loss, optimizers) as scaled:
            yield scaled

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        with self._with():
            return self.inner.backward(closure, optimizers)


@fault(TRACE)
class LossScaledByThePreviousScale(_OtherScale):
    """After the scale has moved, one more loss is scaled by the one before."""

    _before: float | None = None

    def _other(self) -> float:
        now = self.read_state().scale
        self._before, before = now, self._before
        return now if before is None else before


@fault(TRACE)
class LossNotScaled(_OtherScale):
    """The loss is not scaled, yet gradients are unscaled."""

    def _other(self) -> float:
        return 1.0


@fault("test_accumulated_micro_batches_are_one_batch", needs="accumulation")
class WindowSummed(Backend):
    """Micro-batches are summed, not averaged."""

    def __init__(self, spec: SessionSpec) -> None:
        super().__init__(replace(spec, accumulate_steps=1))


class _Proxy:
    """A scaled loss, changed."""

    def __init__(self, scaled: ScaledLoss, value: Any, times: int) -> None:
        self._scaled, self._value, self._times = scaled, value, times

    @property
    def value(self) -> Any:
        return self._scaled.value if self._value is None else self._value

    def backward(self, retain_graph: bool = False) -> None:
        for _ in range(self._times):
            self._scaled.backward(retain_graph)


@fault("test_the_scaled_loss_is_divided", "test_the_loss_is_scaled_in_float32", needs="context_form")
class ScaledValueUnscaled(TrainingFault):
    """``scaled_loss.value`` is the loss itself."""

    @contextmanager
    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> Iterator[ScaledLoss]:
        with self.inner.scale_loss(loss, optimizers) as scaled:
            yield _Proxy(scaled, loss, 1)


@fault("test_context_form_and_closure_form_mean_the_same", needs="context_form")
class BackwardDropped(TrainingFault):
    """``scaled_loss.backward()`` does nothing."""

    @contextmanager
    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> Iterator[ScaledLoss]:
        with self.inner.scale_loss(loss, optimizers) as scaled:
            yield _Proxy(scaled, None, 0)


@fault("test_one_loss_for_two_optimizers", needs="several_optimizers")
class OneOptimizerLeftOut(TrainingFault):
    """Of several optimizers that a loss names, the last gets no gradients."""

    @contextmanager
    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> Iterator[ScaledLoss]:
        with self.inner.scale_loss(loss, optimizers[:-1] or optimizers) as scaled:
            yield scaled

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        return self.inner.backward(closure, optimizers[:-1] or optimizers)


@fault(
    "test_an_optimizer_that_was_not_named_gets_nothing",
    "test_training_one_more_often_than_the_other",
    needs="several_optimizers",
)
class OptimizersNotNamedTrainToo(TrainingFault):
    """A loss trains all prepared optimizers, not those that it names."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._prepared: list[Any] = []

    def prepare(self, models: Sequence[Any], optimizers: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        prepared = self.inner.prepare(models, optimizers)
        self._prepared += prepared[1]
        return prepared

    @contextmanager
    def scale_loss(self, loss: Any, optimizers: Sequence[Any]) -> Iterator[ScaledLoss]:
        with self.inner.scale_loss(loss, self._prepared) as scaled:
            yield scaled

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        return self.inner.backward(closure, self._prepared)


@fault("test_the_loss_comes_back_whole", "test_context_form_and_closure_form_mean_the_same")
class BackwardReturnsTheScaledLoss(TrainingFault):
    """``amp.backward`` returns the scaled loss."""

    def backward(self, closure: Callable[[], Any], optimizers: Sequence[Any]) -> Any:
        loss, scale = self.inner.backward(closure, optimizers), self.read_state().scale
        return loss if self.tracing() else self.backend.device.to_native(self.backend.device.to_numpy(loss) * scale)


@fault(CLIP)
class UnscaleDropped(TrainingFault):
    """``unscale`` does nothing."""

    def unscale(self, optimizer: Any) -> None:
        """Forgotten."""


@fault(CLIP)
class UnscaleByHalfTheScale(TrainingFault):
    """``unscale`` divides by another number than the loss was multiplied by."""

    def unscale(self, optimizer: Any) -> None:
        state = self.read_state()
        if not self.backend.spec.loss_scale.enabled:
            return self.inner.unscale(optimizer)
        self.write_state(replace(state, scale=state.scale / 2))
        self.inner.unscale(optimizer)
        return self.inner.write_state(state)


@fault(CLIP)
class ClipBeforeUnscale(TrainingFault):
    """Gradients are clipped before they are unscaled."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._late: list[Any] = []

    def unscale(self, optimizer: Any) -> None:
        self._late.append(optimizer)

    def _catch_up(self, optimizer: Any) -> None:
        if any(one is optimizer for one in self._late):
            self._late = [one for one in self._late if one is not optimizer]
            self.inner.unscale(optimizer)

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        norm = self.inner.clip_grad_norm(optimizer, max_norm)
        self._catch_up(optimizer)
        return norm

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        self._catch_up(optimizer)
        return self.inner.gradients(optimizer)

    def step(self, optimizer: Any, update_scale: bool) -> Any:
        self._catch_up(optimizer)
        return self.inner.step(optimizer, update_scale)


@fault(CLIP)
class NormNotClipped(TrainingFault):
    """``clip_grad_norm`` returns the norm and clips nothing."""

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        return self.inner.clip_grad_norm(optimizer, 1e30)


@fault(CLIP)
class NormClippedToTwice(TrainingFault):
    """``clip_grad_norm`` clips to twice the norm asked for."""

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        return self.inner.clip_grad_norm(optimizer, 2 * max_norm)


@fault(CLIP)
class NormAfterClipping(TrainingFault):
    """``clip_grad_norm`` returns the norm after clipping."""

    def clip_grad_norm(self, optimizer: Any, max_norm: float) -> Any:
        self.inner.clip_grad_norm(optimizer, max_norm)
        return self.inner.clip_grad_norm(optimizer, max_norm)


@fault("test_every_gradient_is_clamped", "test_gradients_can_be_read_between_unscale_and_step")
class ValueNotClipped(TrainingFault):
    """``clip_grad_value`` does nothing."""

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        """Forgotten."""


@fault("test_every_gradient_is_clamped", "test_gradients_can_be_read_between_unscale_and_step")
class ValueClippedToTwice(TrainingFault):
    """``clip_grad_value`` clips to twice the value asked for."""

    def clip_grad_value(self, optimizer: Any, clip_value: float) -> None:
        self.inner.clip_grad_value(optimizer, 2 * clip_value)


class _Gradients(TrainingFault):
    def _changed(self, found: dict[str, Any]) -> Mapping[str, Any]:
        raise NotImplementedError

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        found = self.inner.gradients(optimizer)
        return found if self.tracing() else dict(self._changed(found))


@fault("test_gradients_edited_in_the_loop_are_what_is_applied")
class GradientsAreCopies(_Gradients):
    """What ``gradients`` returns is a copy: editing it changes nothing."""

    def _changed(self, found: dict[str, Any]) -> Mapping[str, Any]:
        return {name: self.to_native(self.to_numpy(gradient).copy()) for name, gradient in found.items()}


@fault("test_gradients_have_the_names_of_parameters", "test_gradients_can_be_read_between_unscale_and_step")
class OneGradientLeftOut(_Gradients):
    """``gradients`` leaves the last one out."""

    def _changed(self, found: dict[str, Any]) -> Mapping[str, Any]:
        return dict(list(found.items())[:-1])


@fault("test_gradients_have_the_names_of_parameters", "test_gradients_can_be_read_between_unscale_and_step")
class GradientsSwapped(_Gradients):
    """``gradients`` returns each under the name of another."""

    def _changed(self, found: dict[str, Any]) -> Mapping[str, Any]:
        return dict(zip(found, reversed(found.values()), strict=True))


@fault("test_gradients_have_the_names_of_parameters", "test_gradients_can_be_read_between_unscale_and_step")
class GradientsOfTheWindowBefore(TrainingFault):
    """``gradients`` returns what it returned the first time."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._first: dict[int, dict[str, Any]] = {}

    def gradients(self, optimizer: Any) -> dict[str, Any]:
        found = self.inner.gradients(optimizer)
        return self._first.setdefault(id(optimizer), found) if found else found
