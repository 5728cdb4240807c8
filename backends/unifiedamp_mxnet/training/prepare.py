"""What ``prepare`` and the constructor refuse, each with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unifiedamp.backend import SessionSpec, errors

from ..device.versions import gluon, mx, param_dtype
from ..precision.layers import walk

first_names = errors.first_names


def check_model(model: Any) -> None:
    """Refuse what is not a Gluon block.

    Raises:
        WrongObjectError: see above.
    """
    if not isinstance(model, gluon.Block):
        raise errors.WrongObjectError(f"expected gluon.Block, got {kind(model)}")


def check_trainer(trainer: Any) -> None:
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


def kind(obj: Any) -> str:
    """Return how MXNet's users write the type of ``obj``."""
    module = type(obj).__module__
    if module.startswith("mxnet.optimizer"):
        return f"mx.optimizer.{type(obj).__name__}"
    return type(obj).__name__ if module == "builtins" else f"{module}.{type(obj).__name__}"


def check_parameters(params: Sequence[Any], names: dict[int, str], spec: SessionSpec) -> None:
    """Refuse trainable parameters in half precision: MXNet's optimizers have no kernel that updates them well.

    Raises:
        ParamDtypeError: naming the first five.
    """
    if spec.policy.param_dtype != "float32":
        return
    wrong = [p for p in params if p.grad_req != "null" and param_dtype(p.dtype) in ("float16", "bfloat16")]
    if not wrong:
        return
    dtypes = sorted({param_dtype(p.dtype) for p in wrong})
    shown = first_names(names.get(id(p), p.name) for p in wrong)
    raise errors.ParamDtypeError(
        f"{len(wrong)} trainable parameters are {' and '.join(dtypes)} ({shown}); policy {spec.policy} keeps "
        "parameters in float32: call model.cast('float32') before amp.prepare"
    )


def check_owner(trainer: Any, known: dict[int, str]) -> None:
    """Refuse a Trainer whose parameters are in none of the models.

    Raises:
        PrepareError: naming the parameters.
    """
    foreign = [p.name for p in trainer._params if id(p) not in known]
    if foreign:
        raise errors.PrepareError(
            f"the Trainer holds {len(foreign)} parameters that are in none of the prepared models "
            f"({first_names(foreign)}); prepare their model too, or make the Trainer from model.collect_params()"
        )


def check_kvstore(trainer: Any) -> None:
    """Make the Trainer update its weights itself, so that gradients are looked at before any weight moves.

    Raises:
        PrepareError: it cannot be made so any more, or its weights live on the kvstore.
    """
    advice = "create it with gluon.Trainer(..., update_on_kvstore=False)"
    if trainer._contains_sparse_weight:
        raise errors.PrepareError(
            "the Trainer has row_sparse weights, which MXNet updates on the kvstore before gradients can be checked; "
            "use dense weights"
        )
    if trainer._kv_initialized and trainer._update_on_kvstore:
        raise errors.PrepareError(
            "this Trainer already updates its weights on the kvstore (update_on_kvstore=True), before gradients can "
            f"be checked: an inf would reach the weights. {advice}"
        )
    config = trainer._kvstore_params
    store = config["kvstore"]
    if "async" in (store if isinstance(store, str) else getattr(store, "type", "") or ""):
        raise errors.PrepareError(
            "an asynchronous kvstore updates weights before gradients can be checked; use 'dist_sync'"
        )
    if not trainer._kv_initialized:
        config["update_on_kvstore"] = False


def check_contexts(trainer: Any) -> None:
    """Refuse copies of parameters on several contexts whose gradients are never summed: they would drift apart.

    Raises:
        PrepareError: the Trainer has no kvstore.
    """
    count = len(trainer._updaters)
    if count > 1 and trainer._kvstore_params["kvstore"] is None:
        raise errors.PrepareError(
            f"the Trainer has kvstore=None and its parameters lie on {count} contexts: their gradients would not be "
            "summed, and the copies would differ after one step. Make it with gluon.Trainer(..., kvstore='device')"
        )


def check_compression(trainer: Any, spec: SessionSpec) -> None:
    """Refuse compressed gradients under a scaler: they are cut at a threshold before they are looked at and unscaled.

    Raises:
        PrepareError: the Trainer compresses.
    """
    if trainer._compression_params and spec.loss_scale.enabled:
        raise errors.PrepareError(
            f"the Trainer has compression_params={trainer._compression_params!r}, whose threshold would meet gradients "
            "that are multiplied by the loss scale, and hide an inf in them: make it without compression_params, or "
            "the session with loss_scale='none'"
        )


def check_alone(trainer: Any) -> None:
    """Refuse master weights where workers share gradients: their sum would be made in 16 bits.

    Raises:
        PrepareError: the Trainer's kvstore is distributed.
    """
    store = trainer._kvstore_params["kvstore"]
    name = store if isinstance(store, str) else getattr(store, "type", "")
    if store is not None and (name.startswith("dist") or name in ("horovod", "byteps", "p3")):
        raise errors.PrepareError(
            "master_weights=True sums gradients over the devices of one process alone, and the Trainer's kvstore is "
            f"{name!r}; use a mixed policy, whose gradients are float32"
        )


def parameter_names(models: Sequence[Any]) -> dict[int, str]:
    """Return id of a Parameter → its path in its model ("features.0.weight"), numbered where two collide."""
    names: dict[int, str] = {}
    used: set[str] = set()
    for model in models:
        for path, param in model._collect_params_with_prefix().items():
            if id(param) not in names:
                names[id(param)] = path if path not in used else f"{len(used)}.{path}"
                used.add(names[id(param)])
    return names


def warn_of_fixed_graphs(model: Any, spec: SessionSpec) -> None:
    """Warn of blocks whose graph was read from a file: no cast can be put into it any more."""
    fixed = [path or "the model" for path, block in walk(model) if isinstance(block, gluon.SymbolBlock)]
    if fixed and spec.policy.compute_dtype != "float32":
        spec.warn(
            f"{errors.first_names(fixed)}: a SymbolBlock keeps the precision its graph was saved with; "
            "for inference convert it with unifiedamp_mxnet.convert_model",
            errors.PolicyWarning,
        )
