"""What ``prepare`` refuses, each with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from unifiedamp.backend import SessionSpec, errors

from .._types import Block, Parameter, Trainer
from ..distributed import distributed
from ..distributed.reduction import check_reduction
from ..layer_paths import is_symbol_block, named_parameters, prelus_below, walk
from ..mxnet_api import gluon, mx, param_dtype
from ..precision.low_precision_params import Arrays
from . import master_weights


def check_prepare(
    models: Sequence[Block],
    trainers: Sequence[Trainer],
    names: Mapping[int, str],
    spec: SessionSpec,
    originals: Mapping[int, Arrays],
    earlier: Sequence[Trainer] = (),
) -> None:
    """Refuse what would fail later. Only a Trainer's ``update_on_kvstore`` is changed.

    Args:
        models, trainers: what is prepared.
        names: id of each Parameter of the models → its name.
        spec: the session's.
        originals: id of a Parameter → its float32 arrays before the session cast it.
        earlier: the Trainers that were prepared before.

    Raises:
        ParamDtypeError, PrepareError: see the checks below.
    """
    for model in models:
        check_parameters(model.collect_params().values(), names, spec)
        check_graphs(model)
    distributed.check_workers(trainers, earlier)
    for trainer in trainers:
        check_owner(trainer, names)
        distributed.check_contexts(trainer)
        distributed.update_on_trainer(trainer)
        distributed.check_compression(trainer, spec.loss_scale)
        check_reduction(trainer, spec)
        if spec.master_weights:
            distributed.check_one_process(trainer)
            master_weights.check(trainer, originals)


def check_graphs(model: Block) -> None:
    """Refuse hybridized blocks whose gradients are wrong.

    Raises:
        PrepareError: a ``PReLU`` lies in one.
    """
    for path, block in walk(model):
        prelus = prelus_below(block) if vars(block).get("_active") else []
        if prelus:
            raise errors.PrepareError(
                f"amp.prepare: the hybridized block {path or '(the model)'!r} holds PReLU ({', '.join(prelus)}), whose "
                "alpha gets a wrong gradient inside a larger graph (a fault of MXNet): call hybridize(False) on the "
                "model, and let amp.compile compile what is right"
            )


def check_trainer(trainer: object) -> None:
    """Refuse what is not a Gluon Trainer.

    Raises:
        WrongObjectError: see above.
    """
    if isinstance(trainer, gluon.Trainer):
        return
    hint = ""
    if isinstance(trainer, mx.optimizer.Optimizer):
        hint = "; make one of it: gluon.Trainer(model.collect_params(), optimizer)"
    elif isinstance(trainer, (list, tuple)):
        hint = "; pass the models and Trainers one by one: amp.prepare(model, trainer)"
    raise errors.WrongObjectError(f"expected gluon.Trainer, got {kind(trainer)}{hint}")


def kind(obj: object) -> str:
    """Return the type of ``obj`` as MXNet users write it."""
    module = type(obj).__module__
    if module.startswith("mxnet.optimizer"):
        return f"mx.optimizer.{type(obj).__name__}"
    return type(obj).__name__ if module == "builtins" else f"{module}.{type(obj).__name__}"


def check_parameters(params: Iterable[Parameter], names: Mapping[int, str], spec: SessionSpec) -> None:
    """Refuse trainable parameters that the policy cannot train: in 16 bits where it has float32 ones, and in float64
    where anything is computed in 16 bits.

    Raises:
        ParamDtypeError: naming the first five.
    """
    policy = spec.policy
    refused = {"float16", "bfloat16"} if policy.param_dtype == "float32" else set()
    if policy.compute_dtype != "float32" or policy.layer_overrides:
        refused.add("float64")
    wrong = [p for p in params if p.grad_req != "null" and param_dtype(p.dtype) in refused]
    if not wrong:
        return
    dtypes = sorted({param_dtype(p.dtype) for p in wrong})
    shown = errors.first_names(names.get(id(p), p.name) for p in wrong)
    rule = "keeps parameters in float32" if policy.param_dtype == "float32" else "casts parameters from float32"
    raise errors.ParamDtypeError(
        f"{len(wrong)} trainable parameters are {' and '.join(dtypes)} ({shown}); policy {policy} {rule}: call "
        "model.cast('float32') before amp.prepare"
    )


def check_owner(trainer: Trainer, known: Mapping[int, str]) -> None:
    """Refuse a Trainer whose parameters are in none of the models.

    Raises:
        PrepareError: naming the parameters.
    """
    foreign = [p.name for p in trainer._params if id(p) not in known]
    if foreign:
        raise errors.PrepareError(
            f"the Trainer holds {len(foreign)} parameters that are in none of the prepared models "
            f"({errors.first_names(foreign)}); prepare their model too, or make the Trainer from model.collect_params()"
        )


def check_shared(trainers: Iterable[Trainer], prepared: Iterable[Trainer], names: Mapping[int, str]) -> None:
    """Refuse Trainers over one Parameter: it has one gradient, which cannot hold the windows of both.

    Raises:
        PrepareError: naming the parameters.
    """
    held: set[int] = set()
    known = list(prepared)
    for trainer in known:
        held.update(id(param) for param in trainer._params)
    for trainer in trainers:
        if any(trainer is other for other in known):
            continue
        shared = [names.get(id(param), param.name) for param in trainer._params if id(param) in held]
        if shared:
            raise errors.PrepareError(
                f"amp.prepare: another Trainer of this session trains {errors.first_names(shared)} already, and a "
                "Parameter has one gradient: to replace a Trainer, close the session (amp.close()) and prepare the "
                "model and the new Trainer with another one"
            )
        held.update(id(param) for param in trainer._params)
        known.append(trainer)


def parameter_names(models: Sequence[Block]) -> dict[int, str]:
    """Return id of a Parameter → its path in its model ("features.0.weight"), numbered where two collide."""
    names: dict[int, str] = {}
    used: set[str] = set()
    for model in models:
        for path, param in named_parameters(model):
            if id(param) not in names:
                names[id(param)] = path if path not in used else f"{len(used)}.{path}"
                used.add(names[id(param)])
    return names


def warn_fixed_graph(model: Block, spec: SessionSpec) -> None:
    """Warn of blocks whose graph was read from a file: casts cannot be added to it."""
    fixed = [path or "the model" for path, block in walk(model) if is_symbol_block(block)]
    if fixed and spec.policy.compute_dtype != "float32":
        spec.warn(
            f"{errors.first_names(fixed)}: a SymbolBlock keeps the precision its graph was saved with; "
            "for inference convert it with unifiedamp_mxnet.convert_model",
            errors.PolicyWarning,
        )
