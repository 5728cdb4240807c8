"""The checks of ``amp.prepare``, and which optimizer trains which parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

from unifiedamp.backend import SessionSpec, errors

from .._types import Model, Named, Optimizer
from ..internals import built_for, is_built, native
from ..precision import layers
from . import moments, optimizers, weight_updates


def check_objects(models: Sequence[Model], given: Sequence[Optimizer], spec: SessionSpec) -> None:
    """Refuse objects that are not Keras models or optimizers, models without variables, wrapped optimizers.

    Raises:
        WrongObjectError, PrepareError: see the messages.
    """
    for optimizer in given:
        check_optimizer(optimizer)
        if spec.master_weights or spec.policy.update or spec.policy.state_dtype:
            _check_not_built(optimizer, spec)
        if spec.policy.update or spec.policy.state_dtype:
            weight_updates.check_optimizer(optimizer)
            moments.check_optimizer(optimizer, spec.policy)
    for model in models:
        if not model.built or not model.weights:
            raise errors.PrepareError(
                f"model {model.name!r} has no variables yet, so an optimizer cannot be bound to them; give it an "
                "input shape (keras.Input, model.build(...)) or call it once on a batch, inside 'with amp.scope():'"
            )
        _check_not_quantized(model)
    if not spec.master_weights and not spec.policy.update:
        _check_dtypes(layers.parameters(models), spec)


def _check_not_built(optimizer: Optimizer, spec: SessionSpec) -> None:
    if is_built(optimizer):
        needs = (
            "state_dtype= needs slots of fewer bits"
            if spec.policy.state_dtype
            else "update= needs float32 slots"
            if spec.policy.update
            else ("master_weights=True has it train float32 copies of them")
        )
        raise errors.PrepareError(
            f"amp.prepare: this {type(optimizer).__name__} was built for the model's own variables, and {needs}; make "
            "a new one and leave building it to amp.prepare"
        )


def _check_not_quantized(model: Model) -> None:
    for path, layer in layers.walk(model):
        if getattr(layer.dtype_policy, "quantization_mode", None) == "float8":
            raise errors.PrepareError(
                f"layer {path or model.name!r} was quantized by Keras ({layer.dtype_policy.name}): its scales are "
                "trainable variables that the step would train as weights; leave model.quantize('float8') out and use "
                "policy 'mixed_float8'"
            )


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse an object that is not a Keras optimizer, or that scales losses already.

    Raises:
        WrongObjectError, PrepareError: see the messages.
    """
    if optimizers.is_wrapped(optimizer):
        raise errors.PrepareError(
            f"amp.prepare: this {type(optimizer).__name__} scales the loss already, since another session trains "
            "with this optimizer: call close() on that session first, or make a new optimizer"
            if optimizers.is_prepared(optimizer)
            else f"amp.prepare: this {type(optimizer).__name__} scales the loss already; pass the optimizer inside it "
            "(optimizer.inner_optimizer), the session does the scaling"
        )
    if not optimizers.is_optimizer(optimizer):
        legacy = ".legacy." in type(optimizer).__module__ or "optimizer_v2" in type(optimizer).__module__
        hint = "; use the class of tf.keras.optimizers, not of optimizers.legacy" if legacy else ""
        raise errors.WrongObjectError(
            f"amp.prepare takes Keras models and Keras optimizers, got {type(optimizer).__module__}."
            f"{type(optimizer).__name__}{hint}"
        )
    factor = getattr(optimizer, "loss_scale_factor", None)
    if factor is not None:
        raise errors.PrepareError(
            f"amp.prepare: this {type(optimizer).__name__} has loss_scale_factor={factor}, which "
            "would scale twice; leave it out and give Amp(loss_scale=...)"
        )


def assign_parameters(
    models: Sequence[Model], given: Sequence[Optimizer], owned: Iterable[int]
) -> list[tuple[Optimizer, Named]]:
    """Return each optimizer with its named parameters.

    An optimizer that was built keeps its own variables. The others take what is left: one takes all of it; several
    take one model each, in order.

    Args:
        models, given: what ``amp.prepare`` was given.
        owned: the ids of the variables that earlier optimizers train.

    Raises:
        PrepareError: an optimizer's variables are not the models', or it is not clear whose they are.
    """
    named = layers.parameters(models)
    taken = set(owned)
    trained = any(id(variable) in taken for variable in named.values())
    built = [(optimizer, _own(optimizer, named)) for optimizer in given if is_built(optimizer)]
    taken |= {id(variable) for _, own in built for variable in own.values()}
    rest = [optimizer for optimizer in given if not is_built(optimizer)]
    shares = _shares(models, rest, {name: v for name, v in named.items() if id(v) not in taken}, trained)
    found = {id(o): own for o, own in [*built, *zip(rest, shares, strict=True)]}
    return [(optimizer, found[id(optimizer)]) for optimizer in given]


def _shares(models: Sequence[Model], rest: Sequence[Optimizer], free: Named, trained: bool) -> list[Named]:
    if len(rest) <= 1:
        shares = [free] * len(rest)
    elif len(rest) == len(models):
        ids = [{id(v) for v in layers.parameters([model]).values()} for model in models]
        shares = [{name: v for name, v in free.items() if id(v) in own} for own in ids]
    else:
        raise errors.PrepareError(
            f"amp.prepare: {len(rest)} optimizers and {len(models)} models, and a Keras optimizer does not know its "
            "variables before it is built: call optimizer.build(model.trainable_variables) for each"
        )
    for optimizer, share in zip(rest, shares, strict=True):
        if not share:
            raise errors.PrepareError(
                f"amp.prepare: no trainable variable is left for this {type(optimizer).__name__}"
                + (
                    ", since another optimizer of this session trains them already: to replace it, close the session "
                    "(amp.close()) and prepare the model and the new optimizer with another one"
                    if trained
                    else "; give the model it trains, with trainable layers"
                )
            )
    return shares


def _own(optimizer: Optimizer, named: Named) -> Named:
    by_id = {id(variable): name for name, variable in named.items()}
    known, foreign = built_for(optimizer, named)
    variables = [native(variable) for variable in known]
    _refuse_foreign(optimizer, foreign + [variable.name for variable in variables if id(variable) not in by_id])
    return {by_id[id(variable)]: variable for variable in variables}


def check_again(optimizer: Optimizer, trained: Named, models: Sequence[Model]) -> None:
    """Refuse an optimizer that the session prepared before, if it comes without the model that it trains.

    Raises:
        PrepareError: naming the variables.
    """
    present = {id(variable) for variable in layers.parameters(models, layers.own_weights).values()}
    _refuse_foreign(optimizer, [variable.name for variable in trained.values() if id(variable) not in present])


def _refuse_foreign(optimizer: Optimizer, foreign: Sequence[str]) -> None:
    if foreign:
        raise errors.PrepareError(
            f"amp.prepare: this {type(optimizer).__name__} was built for variables that no given model has "
            f"({errors.first_names(foreign)}); prepare the model they belong to with it"
        )


def _check_dtypes(named: Named, spec: SessionSpec) -> None:
    half = [name for name, variable in named.items() if variable.dtype in (tf.float16, tf.bfloat16)]
    if half and spec.loss_scale.enabled:
        raise errors.ParamDtypeError(
            f"{len(half)} trainable parameters are {named[half[0]].dtype.name} ({errors.first_names(half)}); a loss "
            "scaler needs float32 parameters: make the model under 'mixed_float16', or use loss_scale='none'"
        )
