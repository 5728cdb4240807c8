"""One Trainer's gradients in the current window, on all its contexts: gathered, added, checked, scaled, emptied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .native import call, context_of

CHUNK = 200
"""Arrays per call of the finite check, as in MXNet's own scaler."""


class Entry(NamedTuple):
    """One parameter on one context: its place in the Trainer, its gradient and its data."""

    index: int
    grad: Any
    data: Any


class Window:
    """What a Trainer has gathered since its last step.

    Args:
        trainer: a ``gluon.Trainer`` whose updates are not made on its kvstore.
        names: id of a Parameter → the name that ``gradients`` gives it.

    Attributes:
        backwards: backward passes made for it in this window.
        unscaled: its gradients have been divided by the scale.
        found_inf: whether a gradient was inf or nan; None when nobody looked.
        losses: unscaled losses of the window, for diagnosis.
    """

    def __init__(self, trainer: Any, names: dict[int, str]) -> None:
        self.trainer = trainer
        self.names = names
        self._adding = [param for param in trainer._params if param.grad_req == "add"]
        self.write_only()
        self.restart()

    def restart(self) -> None:
        """Begin a new window."""
        self.backwards = 0
        self.unscaled = False
        self.found_inf: bool | None = None
        self.losses: list[Any] = []

    def note(self, losses: list[Any]) -> None:
        """Note that a backward pass of these losses was made for the Trainer."""
        self.backwards += 1
        self.losses += losses

    # -- which gradients there are -------------------------------------------------------------------------------

    def fresh(self) -> list[list[Entry]]:
        """Return, for each context, the gradients that a backward pass wrote in this window."""
        contexts: list[list[Entry]] = [[] for _ in self.trainer._updaters]
        for index, param in enumerate(self.trainer._params):
            if param._grad is not None:
                for entries, data, grad in zip(contexts, param._data, param._grad):  # noqa: B905
                    if data._fresh_grad:
                        entries.append(Entry(index, grad, data))
        return contexts

    def name(self, index: int) -> str:
        """Return the name of the Trainer's parameter at ``index``."""
        param = self.trainer._params[index]
        return self.names.get(id(param), param.name)

    # -- accumulation --------------------------------------------------------------------------------------------

    def write_only(self) -> None:
        """Have backward passes write their gradients; :meth:`take_back` adds those that came before.

        MXNet's own ``grad_req="add"`` loses the gradient of a parameter that is cast to bfloat16: its ``amp_cast``
        writes zeros there.
        """
        for param in self._adding:
            param.grad_req = "write"

    def restore(self) -> None:
        """Give the parameters back the ``grad_req`` they had."""
        for param in self._adding:
            param.grad_req = "add"
        self._adding.clear()

    def set_aside(self) -> list[tuple[Entry, Any, bool]]:
        """Copy the gradients before another backward pass overwrites them, and mark them as not written."""
        kept = []
        for entries in self.fresh():
            for entry in entries:
                adds = self.trainer._params[entry.index].grad_req == "add"
                kept.append((entry, entry.grad.copy(), adds))
                entry.data._fresh_grad = False
        return kept

    def take_back(self, kept: list[tuple[Entry, Any, bool]], add: bool) -> None:
        """After that pass: add what was set aside to what it wrote, or (``add=False``) put it back in its place."""
        if not add:
            self.forget(self.fresh())
        for (_, now, data), before, adds in kept:
            if not add:
                now[:] = before
            elif data._fresh_grad and not adds:
                now += before
            data._fresh_grad = True

    # -- deciding and editing ------------------------------------------------------------------------------------

    def reduce(self) -> None:
        """Sum the gradients over contexts and workers, as ``Trainer.allreduce_grads`` does."""
        trainer = self.trainer
        if not trainer._kv_initialized:
            trainer._init_kvstore()
        if trainer._params_to_init:
            trainer._init_params()
        trainer._allreduce_grads()

    def divide(self, contexts: list[list[Entry]], scale: float) -> None:
        """Divide the gradients by the scale, in place."""
        if scale != 1.0:
            for entries in contexts:
                for _, grad, _ in entries:
                    grad /= scale
        self.unscaled = True

    def empty(self, contexts: list[list[Entry]] | None = None) -> None:
        """Drop the window's gradients and begin the next window."""
        self.forget(self.fresh() if contexts is None else contexts)
        self.restart()

    def forget(self, contexts: list[list[Entry]]) -> None:
        """Mark gradients as not written, and zero those that backward passes add to."""
        params = self.trainer._params
        added = []
        for entries in contexts:
            for index, grad, data in entries:
                data._fresh_grad = False
                if params[index]._grad_req == "add":
                    added.append(grad)
        if added:
            zero(added)

    def apply(self, contexts: list[list[Entry]], rescale: float) -> None:
        """Run the Trainer's updaters on the gradients, each multiplied by ``rescale``."""
        trainer = self.trainer
        trainer._optimizer.rescale_grad = rescale
        for updater, entries in zip(trainer._updaters, contexts, strict=True):
            if entries:
                updater(*zip(*entries))  # noqa: B905


def zero(arrays: list[Any]) -> None:
    """Fill arrays with zeros, those of each context in one call."""
    for group in by_context(arrays):
        call("reset_arrays", group, num_arrays=len(group))


def all_finite(grads: Iterable[Any]) -> bool:
    """Tell whether every gradient on every context is finite. Waits for the devices."""
    flags = []
    for group in by_context(map(dense, grads)):
        for start in range(0, len(group), CHUNK):
            chunk = group[start : start + CHUNK]
            flags.append(call("multi_all_finite", chunk, num_arrays=len(chunk), init_output=True))
    return all(bool(flag.asnumpy()[0]) for flag in flags)


def global_norm(entries: list[Entry]) -> Any:
    """Return the 2-norm over all gradients of one context, a native scalar."""
    grads = [dense(entry.grad) for entry in entries]
    squares = call("multi_sum_sq", grads, num_arrays=len(grads))
    return squares.sum() ** 0.5


def dense(grad: Any) -> Any:
    """Return the array that holds a gradient's numbers (of a sparse one, its rows)."""
    return grad if grad.stype == "default" else grad.data


def by_context(arrays: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the arrays of each context."""
    groups: dict[Any, list[Any]] = {}
    for array in arrays:
        groups.setdefault(context_of(array), []).append(array)
    yield from groups.values()
