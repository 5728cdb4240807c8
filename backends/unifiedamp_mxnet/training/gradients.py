"""One Trainer's gradients in the current window, on all its contexts: gathered, added, reduced, divided, dropped."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from .._types import Array, Trainer
from ..distributed.distributed import connect
from ..distributed.reduction import sum_of
from ..distributed.workers import WRITTEN_KEY, WorkerAgreement, WorkerFlags
from ..mxnet_api import cast, context_of
from ..precision.bfloat16_bits import rounded_copy
from ..precision.low_precision_params import is_low_precision
from .multi_tensor import zero


class Entry(NamedTuple):
    """One parameter on one context: its place in the Trainer, its gradient and its data."""

    place: int
    grad: Array
    data: Array


Gradients = list[list[Entry]]
"""The gradients of each context."""


class Stashed(NamedTuple):
    """A gradient before another backward pass overwrites it."""

    entry: Entry
    values: Array
    adds: bool
    """The next pass adds to it, by ``grad_req``."""


class GradientBuffer:
    """The gradients that a Trainer has gathered since its last step.

    A backward pass of MXNet's marks each gradient that it wrote (``_fresh_grad``). Where gradients are scaled, the
    buffer takes the marks off after the session's passes, so that a mark found later is another pass's.

    Args:
        trainer: a ``gluon.Trainer`` whose updates are not made on its kvstore.
        names: id of a Parameter → the name that ``gradients`` gives it.
        widens: gradients of 16-bit parameters are gathered in float32, for master weights.
        rescales: gradients are those of a scaled loss or of a window's mean, so native ones must not mix with them.
        reduce_dtype: in which they are summed over contexts; None for their own.
        settings: returns what the workers' sessions must share.
        emulated: ids of the Parameters whose float32 arrays hold bfloat16 numbers, as their gradients do.

    Attributes:
        pending: a loss was scaled for it in this window.
        backwards: backward passes made for it in this window.
        unscaled: its gradients have been divided by the scale.
        found_inf: whether a gradient was inf or nan; None when not checked.
        losses: unscaled losses of the window, for diagnosis.
        condition: whether a condition of ``amp.skip_if`` drops the step on this worker; None where none was given.
        loaded: whether this worker loaded a state since its last step.
        records: whether this worker records the window's step.
        all_record: whether all workers recorded the last step.
        on_reduced: called once the window's gradients are summed; None where nothing is to be called.
    """

    def __init__(
        self,
        trainer: Trainer,
        names: dict[int, str],
        widens: bool = False,
        rescales: bool = False,
        reduce_dtype: str | None = None,
        settings: Callable[[], Mapping[str, str]] = dict,
        emulated: Container[int] = (),
    ) -> None:
        self._emulated = emulated
        self.trainer, self._sum = trainer, sum_of(trainer, reduce_dtype)
        self._workers = WorkerFlags(trainer, WRITTEN_KEY)
        self._agreement = WorkerAgreement(trainer, settings)
        self._names, self._widens, self._rescales = names, widens, rescales
        self.loaded = self.all_record = False
        self.restart()

    def restart(self) -> None:
        """Begin a new window."""
        self.backwards = 0
        self.pending = self.unscaled = self.records = False
        self.found_inf: bool | None = None
        self.condition: bool | None = None
        self.losses: list[Array] = []
        self.on_reduced: Callable[[], None] | None = None
        self._wide: dict[tuple[int, int], Array] = {}
        self._own: set[tuple[int, int]] = set()

    def begin(self) -> None:
        """Note that a loss is scaled for the Trainer. Its first one overwrites what came before, as MXNet does."""
        if self._rescales and not self.pending:
            self._mark_dropped(self.written())
        self.pending = True

    def add_backward(self, losses: list[Array]) -> None:
        """Note that a backward pass of these losses was made for the Trainer."""
        self.backwards += 1
        self.losses += losses
        if self._widens:
            self._widen()
        self._take_marks()

    def _take_marks(self) -> None:
        """Take the marks of a backward pass off the window's own gradients."""
        if self._rescales:
            for context, entries in enumerate(self.written()):
                for index, _, data in entries:
                    self._own.add((context, index))
                    data._fresh_grad = False

    def has_native_gradients(self) -> bool:
        """Return whether backward passes that were not the session's wrote gradients."""
        params = self.trainer._params if self._rescales else ()
        return any(data._fresh_grad for param in params if param._grad is not None for data in param._data or ())

    # -- which gradients there are -------------------------------------------------------------------------------

    def gradients(self) -> Gradients:
        """Return the window's gradients; those of master weights in float32."""
        contexts = self.written()
        params = self.trainer._params
        for (context, index), grad in self._wide.items():
            contexts[context].append(Entry(index, grad, (params[index]._data or ())[context]))
        if self._wide:
            for entries in contexts:
                entries.sort(key=operator.itemgetter(0))
        return contexts

    def written(self) -> Gradients:
        """Return what backward passes wrote into the parameters' own gradients in this window."""
        contexts: Gradients = [[] for _ in self.trainer._updaters]
        for index, param in enumerate(self.trainer._params):
            if param._grad is not None:
                for context, (data, grad) in enumerate(zip(param._data or (), param._grad, strict=True)):
                    if (context, index) in self._own or data._fresh_grad:
                        contexts[context].append(Entry(index, grad, data))
        return contexts

    def by_name(self) -> dict[str, Array | list[Array]]:
        """Return name → gradient; on several contexts, name → the list of its gradients, one for each."""
        contexts = self.gradients()
        found: dict[str, list[Array]] = {}
        for entries in contexts:
            for entry in entries:
                found.setdefault(self.name(entry.place), []).append(entry.grad)
        return {name: grads[0] if len(contexts) == 1 else grads for name, grads in found.items()}

    def name(self, index: int) -> str:
        """Return the name of the Trainer's parameter at ``index``."""
        param = self.trainer._params[index]
        return self._names.get(id(param), param.name)

    # -- accumulation --------------------------------------------------------------------------------------------

    def _widen(self) -> None:
        """Add the 16-bit gradients that were written to the window's float32 ones."""
        params, taken = self.trainer._params, []
        for context, entries in enumerate(self.written()):
            for entry in entries:
                emulated = id(params[entry.place]) in self._emulated
                if emulated or is_low_precision(params[entry.place]):
                    grad = rounded_copy(entry.grad) if emulated else cast(entry.grad, "float32")
                    key = context, entry.place
                    self._wide[key] = self._wide[key] + grad if key in self._wide else grad
                    taken.append(entry)
        self._mark_dropped([taken])

    def stash_gradients(self) -> list[Stashed]:
        """Copy the gradients before another backward pass overwrites them."""
        params = self.trainer._params
        return [
            Stashed(entry, entry.grad.copy(), params[entry.place].grad_req == "add")
            for entries in self.written()
            for entry in entries
        ]

    def mark_stashed(self, stashed: Iterable[Stashed]) -> None:
        """Take the marks off what was stashed, so that those of the next pass are that pass's."""
        for entry, _, _ in stashed:
            entry.data._fresh_grad = False

    def restore_gradients(self, stashed: Iterable[Stashed], add: bool) -> None:
        """After that pass: add what was stashed to what it wrote, or (``add=False``) restore it."""
        if not add:
            self._mark_dropped(self.written())
            self._own.clear()
        for (_, now, data), before, adds in stashed:
            if not add:
                now[:] = before
            elif data._fresh_grad and not adds:
                now += before
            data._fresh_grad = True
        if not add:
            self._take_marks()

    # -- reducing and dividing -----------------------------------------------------------------------------------

    def reduce(self) -> None:
        """Sum the gradients over contexts and workers, as ``Trainer.allreduce_grads`` does."""
        if connect(self.trainer):
            self._agreement.check()
            self._fill_in()
        self._sum()
        for index in {index for _, index in self._wide}:
            self._sum_wide(index)
        if self.on_reduced is not None:
            self.on_reduced()

    def _fill_in(self) -> None:
        """Zero what no backward pass of this window wrote, which MXNet would add again; let all contexts and workers
        update what one of them wrote.
        """
        written = self.written()
        held = {(context, entry.place) for context, entries in enumerate(written) for entry in entries}
        stale: list[Array] = []
        here = {place for _, place in held}
        flags = [index in here for index in range(len(self.trainer._params))]
        *anywhere, loaded, others_train_on = self._workers.any([*flags, self.loaded, not self.records])
        self.loaded, self.all_record = False, not others_train_on
        if loaded:
            self._agreement.check(loaded=True)
        for index, param in enumerate(self.trainer._params):
            places = [(context, index) for context in range(len(written))]
            if param._grad is not None:
                stale += [grad for place, grad in zip(places, param._grad, strict=True) if place not in held]
                if anywhere[index]:
                    self._own.update(places)
        zero(stale)

    def _sum_wide(self, index: int) -> None:
        """Give all contexts of one parameter the sum of its float32 gradients; the kvstore has room for 16 bits."""
        first, *others = [grad for (_, at), grad in self._wide.items() if at == index]
        total = first
        for grad in others:
            total = total + grad.copyto(context_of(total))
        for context, data in enumerate(self.trainer._params[index]._data or ()):
            self._wide[context, index] = total.copyto(context_of(data))

    def divide(self, contexts: Gradients, scale: float) -> None:
        """Divide the gradients by the scale, in place."""
        if scale != 1.0:
            for entries in contexts:
                for _, grad, _ in entries:
                    grad /= scale
        self.unscaled = True

    # -- dropping ------------------------------------------------------------------------------------------------

    def zero_grad(self, contexts: Gradients | None = None) -> None:
        """Drop the window's gradients and begin the next window."""
        self._wide = {}
        self._mark_dropped(self.written() if contexts is None else contexts)
        self.restart()

    def _mark_dropped(self, contexts: Gradients) -> None:
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

    def rollback(self) -> None:
        """Drop the window wherever it was interrupted."""
        self._wide = {}
        grads = []
        for param in self.trainer._params:
            for data, grad in zip(param._data or (), param._grad or (), strict=False):
                data._fresh_grad = False
                grads.append(grad)
        zero(grads)
        self.restart()
