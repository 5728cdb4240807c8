"""Keras mixed precision and TensorFlow's graph rewrite: the policy becomes a session, models are made in its scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from ..nodes import dotted
from ..sessions import free_name, share
from ..source import Source
from ..work import EXCHANGED, Work
from .backends import block_other
from .fit import rewrite_fits
from .flags import without_flags
from .given import block, keep, model_steps
from .graphs import graph_step, runner
from .inference import keep_float32, keep_inference
from .loops import Loop, find_loops
from .makers import check_models
from .parts import refuse_parts
from .policy_in_force import by_policy_in_force
from .scopes import Trained, scope_layers, scope_models
from .start import Start, make_session
from .steps import rewrite_loop
from .words import NAME, OLD_IMPORTS, POLICY, REWRITE, V1, WRAPPER, calls_of


def found(source: Source) -> bool:
    """Whether the file uses this API."""
    if any(map(V1.search, map(source.meaning, [*source.of(cst.Attribute), *source.of(cst.Name)]))):
        return False  # sessions_v1.py
    return any(calls_of(source, meaning) for meaning in (POLICY, WRAPPER, REWRITE)) or bool(
        source.methods("get_scaled_loss")
    )


def plan(work: Work) -> None:
    """Work out the changes to a file.

    Raises:
        CannotMigrate: the calls must stay as they are.
    """
    step = graph_step(work.source)
    if step is not None:
        what = f"{dotted(step.func)}() is a step of a TensorFlow 1 graph, which {runner(work.source)} runs"
        write = "make the graph in a SessionRewrite, and run it with rewrite.session_config(): see docs/migrate.md"
        raise work.stop(step, what, write)
    if keep_inference(work) or keep_float32(work):
        return
    block_other(work)
    if not any(calls_of(work.source, meaning) for meaning in (POLICY, WRAPPER, REWRITE)) and keep(work):
        work.decide()
        return
    work.names = replace(work.names, amp=free_name(work.source, work.names.amp))
    start, loops, trained = Start(work), find_loops(work), Trained()
    with work.blocking():
        _with_session(work, start, trained, loops)
    if work.blockers:
        _block_exchanges(work)
    work.decide()


def _block_exchanges(work: Work) -> None:
    """Name what exchanges gradients by itself beside the other reasons, where the file is refused anyhow."""
    known = {one.line for one in work.blockers}
    for call in work.source.of(cst.Call):
        name = work.source.meaning(call.func)
        if name.rpartition(".")[2] in EXCHANGED and work.source.line(call) not in known:
            work.block(call, f"{name} exchanges gradients by itself", "use a tf.distribute strategy")


def _with_session(work: Work, start: Start, trained: Trained, loops: Sequence[Loop]) -> None:
    block(work, model_steps(work.source))
    with work.blocking():
        make_session(work, start)
    for loop in loops:
        with work.blocking():
            rewrite_loop(work, start, trained, loop)
    rewrite_fits(work, start, trained)
    if not trained.models and not work.blockers:
        refuse_parts(work, start.call)
    if start.makes_policy:
        scope_models(work, start, trained)
        scope_layers(work, start)
    else:
        check_models(work, trained.models)
    share(work, start.call, trained.users)


__all__ = ["NAME", "OLD_IMPORTS", "by_policy_in_force", "found", "plan", "without_flags"]
