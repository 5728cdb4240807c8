"""What ``prepare`` attaches to models and optimizers, and taking it off again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from unifiedamp.backend import SessionSpec, errors

from ..device import placement
from ..device.fused_optimizers import sparse_weights
from ..device.selection import has_float8_kernels
from ..device.tuning import TorchTuner
from ..distributed.agreement import Agreement, check_group, layout_of
from ..distributed.late import refuse_late_wrapper
from ..distributed.ranks import TrainingRanks
from ..distributed.reducers import renew_reducers, why_kept
from ..distributed.reduction import check_reduction, reduce_gradients_in
from ..distributed.shard_states import refuse_other_shards
from ..distributed.wrapped import called, casting, is_shared, is_wrapped, replicated, sharded
from ..layer_paths import ParamNames, is_in
from ..models.lazy_layers import refuse_lazy
from ..precision import casts, float8_experts, float8_forward, float8_layers, layers, recomputation
from ..precision.float8_state import Float8State
from . import prepare_checks as checks
from .gradients import parameters, zero_grad
from .native_calls import NativeCalls
from .prepared import Optimizer, PreparedObjects


class Preparation:
    """Prepares the models and optimizers of one session.

    Args:
        spec: the session's.
        device: the session's.
        prepared: where they are added.
        ranks: follow the models.
        agreement: compares them.
        native: detects native steps of the optimizers.
        tuner: tunes them.
        cache_enabled: regions keep casts of parameters.
        emulate: float8 is emulated under each policy.
        float8_state: what float8 layers keep from one pass to the next.
        min_features: ``backend_options.torch.float8_min_features``.

    Attributes:
        float8: for each model, layer path → why the layer does not run in float8.
        float8_experts: likewise, of modules with grouped products.
    """

    def __init__(
        self,
        spec: SessionSpec,
        device: torch.device,
        prepared: PreparedObjects,
        ranks: TrainingRanks,
        agreement: Agreement,
        native: NativeCalls,
        tuner: TorchTuner,
        cache_enabled: bool,
        emulate: bool,
        float8_state: Float8State,
        min_features: int,
    ) -> None:
        self._spec, self._device = spec, device
        self._prepared, self._native, self._tuner = prepared, native, tuner
        self._ranks, self._agreement = ranks, agreement
        self._cache_enabled, self._emulate = cache_enabled, emulate
        self._float8_state, self._min_features = float8_state, min_features
        self._images = spec.compile_mode == "max" or bool(spec.tuning.channels_last)
        self._undo: list[Callable[[], None]] = []
        self._attached: list[tuple[torch.nn.Module, Mapping[str, torch.nn.Module]]] = []
        self._forwards: list[Callable[[], None]] = []  # what undoes the present policy's forwards
        self._outputs: list[casts.OutputCast] = []
        self.float8: list[dict[str, str]] = []
        self.float8_experts: list[dict[str, str]] = []

    def prepare(self, models: Sequence[torch.nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Check and attach; see ``Training.prepare``."""
        prepared = self._prepared
        new = [model for model in models if not is_in(model, prepared.models)]
        fresh = [each for each in optimizers if not is_in(each, prepared.optimizers)]
        earlier = prepared.names
        dtypes, checkpointed = self._check(new, optimizers)
        if prepared.optimizers:
            _drop_gradients(fresh, earlier)
        check_group(self._ranks, new)
        self._ranks.follow([*prepared.models, *new])
        if any(map(is_shared, new)):
            self._agreement.layout = layout_of(new, self._converts_layout)
            self._agreement.check()
        check_reduction(new, self._spec)
        for model in (
            new if optimizers else ()
        ):  # trainers of other libraries wrap a model before its optimizer is there
            self._undo += refuse_late_wrapper(model)
        moved = [self._change(*each) for each in zip(new, dtypes, checkpointed, strict=True)]
        if self._images:
            for each in optimizers:
                self._undo.append(each.register_load_state_dict_post_hook(placement.match_layouts).remove)
        prepared.masters.match_layouts()
        prepared.masters.attach(optimizers)
        prepared.models += new
        prepared.sparse.update(*map(sparse_weights, new))
        prepared.add(fresh)
        self._native.unprepared.follow(new, prepared.without([]))
        self._undo += prepared.late.follow(new) + self._ranks.local_passes.follow(new)
        prepared.dtypes.follow(new, fresh)
        self._ranks.shards_wait &= len(prepared.optimizers) < 2
        self._undo += self._native.watch(fresh) + prepared.updates.watch(fresh) + self._float8_state.watch(fresh)
        self._undo += refuse_other_shards(fresh)
        if any(moved):
            for optimizer in prepared.optimizers:
                placement.match_state(optimizer)
        self._undo += self._tuner.fuse(optimizers, prepared.sparse)

    def _check(
        self, new: Sequence[torch.nn.Module], optimizers: Sequence[Optimizer]
    ) -> tuple[list[dict[str, str]], list[dict[str, torch.nn.Module]]]:
        """Refuse what cannot be trained; return each model's layer dtypes and recomputed layers."""
        spec, prepared = self._spec, self._prepared
        checks.check_models(new)
        self._check_shapes(new)
        checks.check_optimizers(optimizers)
        wide = spec.master_weights or bool(spec.policy.update)
        checks.check_fused(optimizers, "float32" if wide else spec.policy.param_dtype, self._device.type)
        checks.check_dtypes(new, spec.policy, spec.loss_scale.enabled, wide)
        checks.warn_float64(new, spec)
        names = prepared.names.with_models(new)
        checks.check_owned(optimizers, names, prepared.masters.model_param)
        checks.check_trainable(optimizers, lambda param: names.of(prepared.masters.model_param(param)))
        for later in spec.policies:  # so that no switch fails in the middle of a run
            dtypes = [layers.layer_dtypes(model, later, self._device.type) for model in new]
        dtypes = [layers.layer_dtypes(model, spec.policy, self._device.type) for model in new]
        for model, chosen in zip(new, dtypes, strict=True):
            layers.check_sharded(model, chosen, spec.policy)
        checkpointed = [recomputation.choose(model, spec.tuning.checkpoint_layers) for model in new]
        prepared.names = names
        return dtypes, checkpointed

    def _check_shapes(self, new: Sequence[torch.nn.Module]) -> None:
        """Refuse lazy layers without a shape, where the session looks at shapes or values before the first batch."""
        float8 = any(policy.compute_dtype == "float8" for policy in self._spec.policies)
        for model in new:
            needs = {
                "master_weights": self._spec.master_weights,
                "tuning.channels_last": self._images and placement.has_images(model),
                "tuning.fused_optimizer": self._spec.tuning.fused_optimizer,
                "float8": float8,
            }
            for name in (name for name, needed in needs.items() if needed):
                refuse_lazy(model, f"amp.prepare with {name}")

    def _change(
        self, model: torch.nn.Module, dtypes: Mapping[str, str], recomputed: Mapping[str, torch.nn.Module]
    ) -> bool:
        """Move a model, attach casts, convert its layout; return whether parameters changed."""
        changed = placement.move(model, self._device)
        changed |= self._attach(model, dtypes, recomputed)
        changed |= self._images and self._to_channels_last(model)
        if changed:
            renew_reducers(model)
        reduce_gradients_in(model, self._spec)
        return changed

    def _attach(
        self, model: torch.nn.Module, dtypes: Mapping[str, str], recomputed: Mapping[str, torch.nn.Module]
    ) -> bool:
        """Attach casts and layer regions; return whether parameters changed."""
        policy = self._spec.policy
        changed = policy.param_dtype != "float32" and self._cast(model, dtypes)
        self._attach_forwards(model, dtypes, recomputed)
        self._attached.append((model, recomputed))
        self._tuner.note_model(model, list(recomputed))
        cast_output = casts.OutputCast(casts.DTYPES[policy.output_dtype])
        self._outputs.append(cast_output)
        self._undo.append(called(model).register_forward_hook(cast_output).remove)
        return changed

    def _attach_forwards(
        self, model: torch.nn.Module, dtypes: Mapping[str, str], recomputed: Mapping[str, torch.nn.Module]
    ) -> None:
        """Replace the forwards of layers, from the innermost replacement to the outermost."""
        policy = self._spec.policy
        self._forwards += layers.wrap_layers(model, dtypes, policy, self._device.type, self._cache_enabled)
        self._leave_to_fsdp(model, dtypes)
        if policy.compute_dtype == "float8":
            self._attach_float8(model, dtypes)
        self._forwards += [recomputation.Checkpointed(module).remove for module in recomputed.values()]

    def follow_policy(self) -> None:
        """Attach to all models what the session's policy does now, in the place of what was attached before."""
        policy = self._spec.policy
        self._detach_forwards()
        self.float8.clear()
        self.float8_experts.clear()
        for model, recomputed in self._attached:
            self._attach_forwards(model, layers.layer_dtypes(model, policy, self._device.type), recomputed)
        for cast_output in self._outputs:
            cast_output.dtype = casts.DTYPES[policy.output_dtype]

    def _detach_forwards(self) -> None:
        while self._forwards:
            self._forwards.pop()()

    def _cast(self, model: torch.nn.Module, dtypes: Mapping[str, str]) -> bool:
        policy = self._spec.policy
        before = {param: param.data for param in model.parameters()}
        changed = layers.cast_parameters(model, dtypes, policy)
        if self._spec.master_weights:
            self._prepared.masters.create(before)
        cast = casts.InputCast(casts.DTYPES[policy.param_dtype])
        self._undo.append(called(model).register_forward_pre_hook(cast, with_kwargs=True).remove)
        return changed

    def _leave_to_fsdp(self, model: torch.nn.Module, dtypes: Mapping[str, str]) -> None:
        """Run what FSDP2 casts without autocast inside."""
        found = casting(model)
        if found and len(self._spec.policies) > 1:
            raise errors.PrepareError(
                f"amp.prepare: {type(found[0]).__name__} is sharded with an mp_policy, which casts by one policy "
                "throughout, and this session has a schedule: leave mp_policy out, so that autocast casts inside"
            )
        if found and self._spec.policy.emulate:
            raise errors.PrepareError(
                f"amp.prepare: policy '{self._spec.policy}' cannot be emulated inside {type(found[0]).__name__}, which "
                "fully_shard(mp_policy=...) casts: leave mp_policy out"
            )
        if found and (dtypes or self._spec.policy.op_overrides):
            self._spec.warn(
                f"policy '{self._spec.policy}' has overrides, which act through autocast and have no effect inside "
                f"{type(found[0]).__name__}: fully_shard(mp_policy=...) casts it as a whole. Shard layers that need "
                "another dtype with a different mp_policy",
                errors.PolicyWarning,
            )
        self._forwards += layers.without_autocast(found, self._device.type)

    def _attach_float8(self, model: torch.nn.Module, dtypes: Mapping[str, str]) -> None:
        emulate, device = self._emulate or self._spec.policy.emulate, self._device
        how = float8_layers.how(self._spec.policy.float8, not emulate and has_float8_kernels(device))
        chosen = float8_layers.choose(model, dtypes, how.multiple, self._min_features)
        unsupported = float8_experts.why_unsupported(how, self._spec.policy.float8, emulate, device)
        experts = float8_experts.choose(model, dtypes, unsupported, self._min_features)
        self._warn_without_float8(model, {**chosen, **experts})
        prefix = f"model{len(self.float8)}." if self.float8 else ""
        self.float8.append(chosen)
        self.float8_experts.append(experts)
        state = self._float8_state
        self._forwards += float8_forward.wrap(model, _in_float8(chosen), device.type, how, emulate, state, prefix)
        self._forwards += float8_experts.wrap(model, _in_float8(experts), device.type, how, emulate)
        if state.gathered is not None and not len(state.gathered):
            self._spec.warn(
                f"backend_options.torch.float8_all_gather has no effect on {type(model).__name__}: it holds no float8 "
                "layer that fully_shard divides by rows on its device",
                errors.PolicyWarning,
            )

    def _warn_without_float8(self, model: torch.nn.Module, chosen: Mapping[str, str]) -> None:
        if not all(chosen.values()):
            return
        path, why = next(iter(chosen.items()), ("", "it has no torch.nn.Linear"))
        self._spec.warn(
            f"policy '{self._spec.policy}' runs nothing of {type(model).__name__} in float8: "
            f"{path and path + ': '}{why}; amp.explain() lists the layers",
            errors.PolicyWarning,
        )

    def _converts_layout(self, model: torch.nn.Module) -> bool:
        """Return whether a model's convolutions are changed to channels last."""
        free = not is_wrapped(model) or (not sharded([model]) and not any(map(why_kept, replicated([model]))))
        return self._images and free and placement.has_images(model)

    def _to_channels_last(self, model: torch.nn.Module) -> bool:
        if self._converts_layout(model):
            return placement.to_channels_last(model)
        if self._spec.tuning.channels_last and placement.has_images(model):
            self._spec.warn(
                f"tuning.channels_last has no effect on {type(model).__name__}: torch.distributed keeps its gradients "
                "in the layout that it found; call model.to(memory_format=torch.channels_last) before wrapping it",
                errors.TuningWarning,
            )
        return False

    def close(self) -> None:
        """Remove hooks and layer regions, restore the optimizers' own parameters. Idempotent.

        Gradients of open windows are dropped: they are scaled, or a part of a mean.
        """
        for optimizer in self._native.with_open_window(self._prepared.optimizers):
            self._prepared.masters.zero_model_grads(optimizer)
            self._ranks.drop_unreduced(parameters(optimizer))
            zero_grad(optimizer)
        self._native.close()
        self._prepared.masters.detach(self._prepared.optimizers)
        self._detach_forwards()
        while self._undo:
            self._undo.pop()()


def _drop_gradients(optimizers: Sequence[Optimizer], earlier: ParamNames) -> None:
    """Drop gradients that losses for other optimizers left in parameters of models that were prepared before."""
    for optimizer in optimizers:
        for param in parameters(optimizer):
            if param in earlier:
                param.grad = None


def _in_float8(chosen: Mapping[str, str]) -> list[str]:
    return [path for path, why in chosen.items() if not why]
