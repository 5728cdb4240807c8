"""One Trainer's gradients in the current window, on all its contexts: gathered, added, checked, scaled, emptied."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..device.versions import NUMPY_API, cast, context_of
from ..precision.low_precision_params import is_half
from .multi_tensor import zero

if TYPE_CHECKING:
    from .master_weights import Masters


LENT: dict[str, Any] = {"allow_np_array": True} if NUMPY_API else {}
"""What an optimizer is told while it updates. One of MXNet 2 that was made outside the main thread would refuse the
arrays of Gluon."""


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
        rescales: its gradients have another size than an unscaled loss's, by a scale or a window's mean; then those of
            other backward passes are told from the session's.

    Attributes:
        pending: a loss was scaled for it in this window.
        backwards: backward passes made for it in this window.
        unscaled: its gradients have been divided by the scale.
        found_inf: whether a gradient was inf or nan; None when nobody looked.
        losses: unscaled losses of the window, for diagnosis.
        updating: the Trainer's updaters have begun, and are not done.
    """

    def __init__(
        self, trainer: Any, names: dict[int, str], masters: Masters | None = None, rescales: bool = False
    ) -> None:
        self.trainer = trainer
        self.names = names
        self.masters = masters
        self.rescales = rescales
        self.updating = False
        self._settings: dict[str, Any] = {}
        self._adding: list[Any] = []
        self.write_only()
        self.restart()

    def restart(self) -> None:
        """Begin a new window."""
        self.backwards = 0
        self.pending = self.unscaled = False
        self.found_inf: bool | None = None
        self.losses: list[Any] = []
        self._wide: dict[tuple[int, int], Any] = {}
        self._own: set[tuple[int, int]] = set()

    def begin(self) -> None:
        """Note that a loss is scaled for the Trainer. Its first one overwrites what came before, as MXNet does."""
        if self.rescales and not self.pending:
            self.forget(self.written())
        self.pending = True

    def note(self, losses: list[Any]) -> None:
        """Note that a backward pass of these losses was made for the Trainer."""
        self.backwards += 1
        self.losses += losses
        if self.masters is not None:
            self._widen()
        self._claim()

    def _claim(self) -> None:
        """Take the marks of a backward pass off what is the window's own."""
        if self.rescales:
            for context, entries in enumerate(self.written()):
                for index, _, data in entries:
                    self._own.add((context, index))
                    data._fresh_grad = False

    def has_others(self) -> bool:
        """Tell whether backward passes that were not the session's wrote gradients."""
        params = self.trainer._params if self.rescales else ()
        return any(data._fresh_grad for param in params if param._grad is not None for data in param._data)

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
                for context, (data, grad) in enumerate(zip(param._data, param._grad, strict=True)):
                    if (context, index) in self._own or data._fresh_grad:
                        contexts[context].append(Entry(index, grad, data))
        return contexts

    def name(self, index: int) -> str:
        """Return the name of the Trainer's parameter at ``index``."""
        param = self.trainer._params[index]
        return self.names.get(id(param), param.name)

    # -- accumulation --------------------------------------------------------------------------------------------

    def write_only(self) -> None:
        """Have backward passes write their gradients; :meth:`take_back` adds those that came before.

        MXNet's own ``grad_req="add"`` loses the gradient of a parameter that is cast to bfloat16: its ``amp_cast``
        writes zeros there. Called at each region, since users may set it at any time.
        """
        for param in [param for param in self.trainer._params if param._grad_req == "add"]:
            param.grad_req = "write"
            self._adding.append(param)

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
        """Copy the gradients before another backward pass overwrites them."""
        params = self.trainer._params
        return [
            (entry, entry.grad.copy(), params[entry.index].grad_req == "add")
            for entries in self.written()
            for entry in entries
        ]

    def mark_as_old(self, kept: list[tuple[Entry, Any, bool]]) -> None:
        """Mark what was set aside as not written, so that what the next pass writes can be told from it."""
        for entry, _, _ in kept:
            entry.data._fresh_grad = False

    def take_back(self, kept: list[tuple[Entry, Any, bool]], add: bool) -> None:
        """After that pass: add what was set aside to what it wrote, or (``add=False``) put it back in its place."""
        if not add:
            self.forget(self.written())
            self._own.clear()
        for (_, now, data), before, adds in kept:
            if not add:
                now[:] = before
            elif data._fresh_grad and not adds:
                now += before
            data._fresh_grad = True
        if not add:
            self._claim()

    # -- deciding and editing ------------------------------------------------------------------------------------

    def reduce(self) -> None:
        """Sum the gradients over contexts and workers, as ``Trainer.allreduce_grads`` does."""
        trainer = self.trainer
        if not trainer._kv_initialized:
            trainer._init_kvstore()
        if trainer._params_to_init:
            trainer._init_params()
        if trainer._kvstore:
            self._fill_in()
        trainer._allreduce_grads()
        for index in {index for _, index in self._wide}:
            self._sum_wide(index)

    def _fill_in(self) -> None:
        """Zero what no backward pass of this window wrote, which MXNet would add again, and let all contexts update."""
        written = self.written()
        held = {(context, entry.index) for context, entries in enumerate(written) for entry in entries}
        stale = []
        for index, param in enumerate(self.trainer._params):
            places = [(context, index) for context in range(len(written))]
            if param._grad is not None:
                stale += [grad for place, grad in zip(places, param._grad, strict=True) if place not in held]
                if not held.isdisjoint(places):
                    self._own.update(places)
        zero(stale)

    def _sum_wide(self, index: int) -> None:
        """Give all contexts of one parameter the sum of its float32 gradients; the kvstore has room for 16 bits."""
        first, *others = [grad for (_, at), grad in self._wide.items() if at == index]
        total = first
        for grad in others:
            total = total + grad.copyto(context_of(total))
        for context, data in enumerate(self.trainer._params[index]._data):
            self._wide[context, index] = total.copyto(context_of(data))

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
        settings = {"rescale_grad": rescale} | LENT
        self._settings = {name: getattr(trainer._optimizer, name) for name in settings}
        try:
            self._set(settings)
            self.updating = True
            for context, (updater, entries) in enumerate(zip(trainer._updaters, contexts, strict=True)):
                if entries and self.masters is not None:
                    self.masters.update(context, entries)
                elif entries:
                    updater(*zip(*entries))  # noqa: B905
            self.updating = False
        finally:
            self._restore_settings()

    def _set(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            setattr(self.trainer._optimizer, name, value)

    def _restore_settings(self) -> None:
        self._set(self._settings)
        self._settings = {}

    def rollback(self) -> bool:
        """Drop the window wherever it was interrupted; return whether its update had begun and was not done."""
        self._restore_settings()
        if self.masters is not None:
            self.masters.restore()
        self._wide = {}
        grads = []
        for param in self.trainer._params:
            for data, grad in zip(param._data or (), param._grad or (), strict=False):
                data._fresh_grad = False
                grads.append(grad)
        zero(grads)
        self.restart()
        partly, self.updating = self.updating, False
        return partly
