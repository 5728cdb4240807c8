"""One Trainer's gradients in the current window, on all its contexts: gathered, added, checked, scaled, emptied."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .half import is_half
from .native import call, cast, context_of, dtype_code

if TYPE_CHECKING:
    from .masters import Masters

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
        masters: the Trainer's float32 master weights, whose gradients are float32 too; None without.

    Attributes:
        backwards: backward passes made for it in this window.
        unscaled: its gradients have been divided by the scale.
        found_inf: whether a gradient was inf or nan; None when nobody looked.
        losses: unscaled losses of the window, for diagnosis.
    """

    def __init__(self, trainer: Any, names: dict[int, str], masters: Masters | None = None) -> None:
        self.trainer = trainer
        self.names = names
        self.masters = masters
        self._adding = [param for param in trainer._params if param.grad_req == "add"]
        self.write_only()
        self.restart()

    def restart(self) -> None:
        """Begin a new window."""
        self.backwards = 0
        self.unscaled = False
        self.found_inf: bool | None = None
        self.losses: list[Any] = []
        self._wide: dict[tuple[int, int], Any] = {}

    def note(self, losses: list[Any]) -> None:
        """Note that a backward pass of these losses was made for the Trainer."""
        self.backwards += 1
        self.losses += losses
        if self.masters is not None:
            self._widen()

    # -- which gradients there are -------------------------------------------------------------------------------

    def fresh(self) -> list[list[Entry]]:
        """Return, for each context, the window's gradients; those of master weights in float32."""
        contexts = self.written()
        params = self.trainer._params
        for (context, index), grad in self._wide.items():
            contexts[context].append(Entry(index, grad, params[index]._data[context]))
        if self._wide:
            for entries in contexts:
                entries.sort(key=operator.itemgetter(0))
        return contexts

    def written(self) -> list[list[Entry]]:
        """Return, for each context, what backward passes wrote into the parameters' own gradients in this window."""
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

    def _widen(self) -> None:
        """Add the 16-bit gradients that were written to the window's float32 ones."""
        params, taken = self.trainer._params, []
        for context, entries in enumerate(self.written()):
            for entry in entries:
                if is_half(params[entry.index]):
                    grad, key = cast(entry.grad, "float32"), (context, entry.index)
                    self._wide[key] = self._wide[key] + grad if key in self._wide else grad
                    taken.append(entry)
        self.forget([taken])

    def set_aside(self) -> list[tuple[Entry, Any, bool]]:
        """Copy the gradients before another backward pass overwrites them, and mark them as not written."""
        kept = []
        for entries in self.written():
            for entry in entries:
                adds = self.trainer._params[entry.index].grad_req == "add"
                kept.append((entry, entry.grad.copy(), adds))
                entry.data._fresh_grad = False
        return kept

    def take_back(self, kept: list[tuple[Entry, Any, bool]], add: bool) -> None:
        """After that pass: add what was set aside to what it wrote, or (``add=False``) put it back in its place."""
        if not add:
            self.forget(self.written())
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
        by_index: dict[int, list[tuple[int, int]]] = {}
        for key in self._wide:
            by_index.setdefault(key[1], []).append(key)
        for keys in by_index.values():
            self._sum_wide(keys)

    def _sum_wide(self, keys: list[tuple[int, int]]) -> None:
        """Give the contexts of one parameter the sum of their float32 gradients; the kvstore has room for 16 bits."""
        total = self._wide[keys[0]]
        for key in keys[1:]:
            total = total + self._wide[key].copyto(context_of(total))
        for key in keys[1:]:
            self._wide[key] = total.copyto(context_of(self._wide[key]))
        self._wide[keys[0]] = total

    def divide(self, contexts: list[list[Entry]], scale: float) -> None:
        """Divide the gradients by the scale, in place."""
        if scale != 1.0:
            for entries in contexts:
                for _, grad, _ in entries:
                    grad /= scale
        self.unscaled = True

    def empty(self, contexts: list[list[Entry]] | None = None) -> None:
        """Drop the window's gradients and begin the next window."""
        self._wide = {}
        self.forget(self.written() if contexts is None else contexts)
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
        for context, (updater, entries) in enumerate(zip(trainer._updaters, contexts, strict=True)):
            if entries and self.masters is not None:
                self.masters.update(context, entries)
            elif entries:
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
    """Return the 2-norm over all gradients of one context, a native scalar; where the squares overflow, it waits."""
    grads = [dense(entry.grad) for entry in entries]
    norm = _norm(grads)
    if math.isinf(float(norm.asnumpy().reshape(()))):
        largest = max(float(abs(grad).max().asnumpy().reshape(())) for grad in grads)
        norm = _norm([grad / largest for grad in grads]) * largest
    return norm


def _norm(grads: list[Any]) -> Any:
    sums = [call("multi_sum_sq", group, num_arrays=len(group)).sum() for group in by_context(grads)]
    squares = [cast(one.reshape((1,)), "float32") for one in sums] if len(sums) > 1 else sums
    return sum(squares[1:], squares[0]) ** 0.5


def dense(grad: Any) -> Any:
    """Return the array that holds a gradient's numbers (of a sparse one, its rows)."""
    return grad if grad.stype == "default" else grad.data


def by_context(arrays: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the arrays of each context and dtype: an operator over many takes one of each."""
    groups: dict[Any, list[Any]] = {}
    for array in arrays:
        groups.setdefault((context_of(array), dtype_code(array)), []).append(array)
    yield from groups.values()
