"""``MXNetDistributed``, and what it takes that all contexts and workers agree: gradients are summed, then checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unifiedamp.backend import Distributed, LossScale, ScaleState, errors

from .._types import Trainer
from .shared_kvstore import SharedKVStore


class MXNetDistributed(Distributed):
    """One decision over all contexts of a Trainer, and over the workers of its kvstore.

    The kvstore sums gradients over contexts and workers. They are checked after the sum, which holds an inf if any of
    them does: all copies of the weights apply the step, or all skip it. Gluon drives all contexts from one thread, so a
    process has one replica.

    Args:
        note_loaded: makes the workers compare what they share in their next step.
    """

    runs_replicas = False

    def __init__(self, note_loaded: Callable[[], None]) -> None:
        self._note_loaded = note_loaded

    def state_loaded(self, state: ScaleState) -> None:
        self._note_loaded()


def kvstore_name(trainer: Trainer) -> str:
    """Return the type of a Trainer's kvstore; empty where it has none."""
    store = trainer._kvstore_params["kvstore"]
    return store if isinstance(store, str) else getattr(store, "type", "") or ""


def update_on_trainer(trainer: Trainer) -> None:
    """Make the Trainer update its weights itself, so that gradients are checked before any weight changes.

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
    if "async" in kvstore_name(trainer):
        raise errors.PrepareError(
            "an asynchronous kvstore updates weights before gradients can be checked; use 'dist_sync'"
        )
    if not trainer._kv_initialized:
        trainer._kvstore_params["update_on_kvstore"] = False


def check_contexts(trainer: Trainer) -> None:
    """Refuse copies of parameters on several contexts whose gradients are never summed: they would diverge.

    Raises:
        PrepareError: the Trainer has no kvstore.
    """
    count = len(trainer._updaters)
    if count > 1 and trainer._kvstore_params["kvstore"] is None:
        raise errors.PrepareError(
            f"the Trainer has kvstore=None and its parameters lie on {count} contexts: their gradients would not be "
            "summed, and the copies would differ after one step. Make it with gluon.Trainer(..., kvstore='device')"
        )


def check_compression(trainer: Trainer, loss_scale: LossScale) -> None:
    """Refuse compressed gradients under a scaler: they meet their threshold before they are checked and unscaled.

    Raises:
        PrepareError: the Trainer compresses.
    """
    if trainer._compression_params and loss_scale.enabled:
        raise errors.PrepareError(
            f"the Trainer has compression_params={trainer._compression_params!r}, whose threshold would meet gradients "
            "that are multiplied by the loss scale, and hide an inf in them: make it without compression_params, or "
            "the session with loss_scale='none'"
        )


def check_workers(trainers: Sequence[Trainer], earlier: Sequence[Trainer]) -> None:
    """Refuse what MXNet's distributed kvstores cannot do, and the libraries beside them that nothing here is tried on.

    Args:
        trainers: those to prepare.
        earlier: the session's, prepared before.

    Raises:
        PrepareError: Horovod or BytePS, or a second Trainer with a distributed kvstore.
    """
    for trainer in trainers:
        for library in ("horovod", "byteps"):
            if kvstore_name(trainer) == library or type(trainer).__module__.partition(".")[0] == library:
                raise errors.PrepareError(
                    f"amp.prepare: {library} sums this Trainer's gradients, and this backend was never run with it; "
                    "use gluon.Trainer(..., kvstore='dist_sync'), whose workers decide together"
                )
    spread = [each for each in {id(each): each for each in (*earlier, *trainers)}.values() if is_distributed(each)]
    alone = [each for each in spread if not isinstance(each._kvstore_params["kvstore"], SharedKVStore)]
    if alone and len(spread) > 1:
        raise errors.PrepareError(
            f"amp.prepare: {len(spread)} Trainers have the kvstore {kvstore_name(spread[-1])!r}, and MXNet hangs where "
            "a process makes a second distributed kvstore; train all parameters by one Trainer (lr_mult of a Parameter "
            "gives it another learning rate), or use several contexts of one process (kvstore='device')"
        )


def check_one_process(trainer: Trainer) -> None:
    """Refuse master weights where workers share gradients: their sum would be made in 16 bits.

    Raises:
        PrepareError: the Trainer's kvstore is distributed.
    """
    if is_distributed(trainer):
        raise errors.PrepareError(
            "master_weights=True sums gradients over the devices of one process alone, and the Trainer's kvstore is "
            f"{kvstore_name(trainer)!r}; use a mixed policy, whose gradients are float32"
        )


def is_distributed(trainer: Trainer) -> bool:
    """Return whether a Trainer's kvstore spans processes."""
    name = kvstore_name(trainer)
    return name.startswith("dist") or name in ("horovod", "byteps", "p3")


def connect(trainer: Trainer) -> bool:
    """Make the Trainer's kvstore where that is still to be done; return whether it has one."""
    if not trainer._kv_initialized:
        trainer._init_kvstore()
    if trainer._params_to_init:
        trainer._init_params()
        if is_distributed(trainer):
            _wait_for_weights(trainer)
    return bool(trainer._kvstore)


def _wait_for_weights(trainer: Trainer) -> None:
    """Wait until the servers' initial weights have come: nothing orders a parameter's pull before the push of its
    gradient, under the same key, and a pull that comes later returns the sum of gradients as weights.
    """
    for param in trainer._params:
        for array in param._data or ():
            array.wait_to_read()


def allreduce(trainer: Trainer) -> None:
    """Sum the gradients over contexts and workers, past the guard of ``Trainer.allreduce_grads``."""
    trainer._allreduce_grads()
