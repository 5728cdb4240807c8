"""What XLA compiles of a step over replicas: for each, a program up to where replicas meet.

XLA compiles for one device, so no program can span replicas. Each replica's forward and backward pass becomes one
(several, where replicas meet or the host is asked within them), and what checks, unscales and clips the summed
gradients another. The sum and the decision stay outside, as does the update, which spans replicas: its part on each
device is compiled by itself (``xla_updates``).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from .. import internals
from .._types import Graph, Tensor

HOST = ("Assert", "Collective", "EagerPyFunc", "Iterator", "LookupTable", "Nccl", "Optional", "Print", "PyFunc")
"""How the types of operations begin that XLA leaves to the host or to several devices."""
COPIED = 1024
"""Elements of a constant that is made anew inside a program, where XLA may need to know its value."""

DEEP = "{} calls a tf.function that has variables and calls others (a loop, a branch, a function)"

CROSSING = "the gradients of a loop are computed after a step, and XLA keeps what they need inside one program"
NOT_PASSED = (tf.variant, tf.resource)
"""Types of tensors that no program passes to another."""

_numbers = itertools.count()


class _Here(threading.local):
    """What one replica's thread is doing; each call of ``strategy.run`` starts new threads.

    Attributes:
        on: operations go to a program.
        program: the present one; None for a new one.
        meeting: how often replicas had met when it began.
    """

    on = True
    program: str | None = None
    meeting = 0


class ReplicaPrograms(internals.XlaContext):
    """Assigns the operations of one trace to programs.

    A graph tells its context of each operation, in the thread of the replica that makes it. Operations of one replica
    go to one program; those of no replica (replicas meet) and those that XLA cannot run (:data:`HOST`) belong to none,
    and programs end there. So a program's operations follow each other without a gap, and no cycle can arise.

    Args:
        device: returns the name of the calling replica's device.

    Attributes:
        missed: why XLA compiles nothing, or not all; None where it compiles.
    """

    def __init__(self, device: Callable[[], str]) -> None:
        super().__init__()
        self.missed: str | None = None
        self._device, self._here = device, _Here()
        self._main, self._meetings, self._outside = threading.get_ident(), 0, 0
        self._programs: dict[str, str] = {}
        self._devices: dict[str, str] = {}
        self._copies: dict[tuple[str, str], Tensor] = {}
        self._outputs: dict[str, Tensor] = {}

    # -- what a graph calls --------------------------------------------------------------------------------------

    def IsXLAContext(self) -> bool:
        """Whether what is being made goes to a program."""
        return self._in_replica() and self._here.on

    def AddOp(self, op: Any) -> None:
        """Assign an operation that was made."""
        if not self._in_replica():
            self._meetings += 1
        elif self._here.on and not needs_host(op):
            self._assign(op, self._program())
            return
        else:
            self._here.program = None
        internals.set_context(op, None)

    def _in_replica(self) -> bool:
        return threading.get_ident() != self._main and not self._outside

    def _program(self) -> str:
        here = self._here
        if here.program is None or here.meeting != self._meetings:
            here.program, here.meeting = f"unifiedamp_replica_program_{next(_numbers)}", self._meetings
            self._devices[here.program] = self._device()
        return here.program

    def _assign(self, op: Any, program: str) -> None:
        internals.assign_to_program(op, program)
        self._programs[op.name] = program
        if internals.calls_deeply(op):
            self.missed = DEEP.format(op.name)
        for index, tensor in enumerate(op.inputs):
            if tensor.op.type == "Const" and tensor.op.name not in self._programs:
                self._copy(op, index, tensor, program)

    def _copy(self, op: Any, index: int, tensor: Any, program: str) -> None:
        """Make a small constant from outside anew: XLA must know the values of axes, shapes and the like."""
        if (tensor.shape.num_elements() or 0) > COPIED:
            return
        if (tensor.name, program) not in self._copies:
            self._copies[tensor.name, program] = tf.constant(tf.get_static_value(tensor), tensor.dtype, tensor.shape)
        internals.replace_input(op, index, self._copies[tensor.name, program])

    # -- a replica -----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Assign what the calling replica does from here on."""
        self._here.on = True

    def end(self) -> None:
        """Assign nothing that the calling replica does from here on."""
        self._here.on, self._here.program = False, None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Assign nothing inside, whatever replica does it."""
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1

    # -- a trace -------------------------------------------------------------------------------------------------

    @contextmanager
    def assigning(self) -> Iterator[None]:
        """Assign what is traced inside; in a trace within another one nothing, whose name would not be unique."""
        graph: Any = tf.compat.v1.get_default_graph()
        if getattr(graph.outer_graph, "building_function", False):
            yield
            return
        before = internals.context_of(graph)
        internals.set_context(graph, self)
        try:
            with internals.unwrapped_control_flow(graph):
                yield
        finally:
            internals.set_context(graph, before)

    def seal(self, result: Any) -> Any:
        """End all programs of a trace; return its result as it is outside them."""
        graph: Any = tf.compat.v1.get_default_graph()
        crossing = list(self._crossing(graph))
        if any(tensor.dtype in NOT_PASSED for _, _, tensor in crossing):
            self.missed = self.missed or CROSSING
        if self.missed:
            self._give_up(graph)
            return result
        for op, index, tensor in crossing:
            internals.replace_input(op, index, self._output(tensor))
        graph.control_outputs = _ControlOutputs(self._programs, self._ends(graph))

        def outside(leaf: Any) -> Any:
            made_here = isinstance(leaf, tf.Tensor) and leaf.graph is graph and leaf.op.name in self._programs
            return self._output(leaf) if made_here else leaf

        return tf.nest.map_structure(outside, result, expand_composites=True)

    def _give_up(self, graph: Graph) -> None:
        """Leave the trace as it would be without programs."""
        for op in graph.get_operations():
            if op.name in self._programs:
                internals.leave_program(op)
        self._programs.clear()

    def _crossing(self, graph: Graph) -> Iterator[tuple[Any, int, Any]]:
        """Yield (operation, index, tensor) of what operations read of other programs; place those of programs."""
        for op in list(graph.get_operations()):
            program = self._programs.get(op.name)
            if program is not None:
                internals.set_device(op, self._devices[program])
            for index, tensor in enumerate(op.inputs):
                if self._programs.get(tensor.op.name, program) != program:
                    yield op, index, tensor

    def _output(self, tensor: Any) -> Tensor:
        if tensor.name not in self._outputs:
            with tf.device(self._devices[self._programs[tensor.op.name]]), tf.control_dependencies(None):
                self._outputs[tensor.name] = internals.program_output(tensor)
        return self._outputs[tensor.name]

    def _ends(self, graph: Graph) -> list[Any]:
        """Return an operation for each program with effects, which runs after it."""
        effects: dict[str, list[Any]] = {}
        for op in graph.get_operations():
            if op.op_def.is_stateful and op.name in self._programs:
                effects.setdefault(self._programs[op.name], []).append(op)
        ends = []
        for program, operations in effects.items():
            with tf.device(self._devices[program]), tf.control_dependencies(operations):
                ends.append(tf.no_op())
        return ends


class _ControlOutputs(list[Any]):
    """What must have run before a function has: in place of a program's operations, which it replaces, its end."""

    def __init__(self, programs: Mapping[str, str], ends: Iterable[Any]) -> None:
        super().__init__(ends)
        self._programs = programs

    def extend(self, operations: Iterable[Any]) -> None:
        """Add those of no program."""
        super().extend(op for op in operations if op.name not in self._programs)


def needs_host(op: Any) -> bool:
    """Whether XLA leaves an operation to the host or to several devices."""
    strings = any(tensor.dtype == tf.string for tensor in (*op.inputs, *op.outputs))
    return strings or op.type.startswith(HOST) or "Summary" in op.type


def present_programs() -> ReplicaPrograms | None:
    """Return what assigns the operations made now; None where nothing does."""
    found = None if tf.executing_eagerly() else internals.context_of(tf.compat.v1.get_default_graph())
    return found if isinstance(found, ReplicaPrograms) else None


def compiled_by_xla() -> bool:
    """Whether programs are made in this trace, or in one around it."""
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if isinstance(internals.context_of(graph), ReplicaPrograms):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def resume_program() -> None:
    """What the calling replica does from here on goes to a program, where steps are compiled so."""
    programs = present_programs()
    if programs is not None:
        programs.resume()


def end_program() -> None:
    """What the calling replica does from here on goes to no program."""
    programs = present_programs()
    if programs is not None:
        programs.end()


@contextmanager
def outside_programs() -> Iterator[None]:
    """What replicas do inside goes to no program."""
    programs = present_programs()
    if programs is None:
        yield
        return
    with programs.paused():
        yield
