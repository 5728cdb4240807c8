"""A loop over a ``tf.GradientTape``, rewritten: the region, the scaled loss, the step, and what is prepared."""

from __future__ import annotations

import libcst as cst

from ..nodes import argument, dotted, walk
from ..sessions import behind, prepare_in
from ..source import Statement
from ..work import Work
from .loops import Loop
from .makers import built_by
from .scopes import Trained, additions
from .start import Start


def rewrite_loop(work: Work, start: Start, trained: Trained, loop: Loop) -> None:
    """Rewrite one loop.

    Args:
        work: takes the changes.
        start: what the session replaces.
        trained: takes the model, and what uses the session.
        loop: as it was written.

    Raises:
        CannotMigrate: no one place makes its optimizer.
    """
    if loop.model == "self":
        raise work.stop(loop.apply, "a model that takes its own steps (train_step)",
                        "compile it with the bare optimizer, and let fit take the steps")  # fmt: skip
    _tape(work, loop)
    trained.users.append(loop.apply)
    trained.models[loop.model] = loop.apply
    _compiled(work, start, loop)
    _prepare(work, start, trained, loop)
    _mode(work, loop)


def _tape(work: Work, loop: Loop) -> None:
    """The tape becomes the session's region; the gradients are the session's."""
    amp, edits, source = work.names.amp, work.edits, work.source
    edits.change(loop.tape, lambda item: item.with_changes(asname=None))
    edits.expression(loop.tape.item, f"{amp}.autocast()")
    for statement in loop.removed:
        edits.statement(statement)
    header = f"with {amp}.scale_loss({source.code(loop.loss)}, {loop.optimizer}) as scaled_loss:"
    edits.statement(loop.gradient, f"{header}\n    scaled_loss.backward()")
    for statement, clip in loop.clips:
        edits.statement(statement, f"{amp}.{clip}")
    edits.statement(loop.apply, f"{amp}.step({loop.optimizer})")


def _compiled(work: Work, start: Start, loop: Loop) -> None:
    """``@tf.function`` over a step becomes ``@amp.compile`` where the session is there already."""
    source = work.source
    function = source.scope(loop.apply)
    if not isinstance(function, cst.FunctionDef):
        return
    made_in = source.scope(start.call)
    visible = source.inside(function, made_in) and source.order[start.call] < source.order[function]
    for decorator in function.decorators:
        if visible and source.meaning(decorator.decorator) == "tensorflow.function":
            work.edits.expression(decorator.decorator, f"{work.names.amp}.compile")


def _prepare(work: Work, start: Start, trained: Trained, loop: Loop) -> None:
    """Prepare model and optimizer where they are made; once, however many loops they are in."""
    place = _place(work, start, loop)
    trained.users.append(place)
    line = prepare_in(work.source, work.source.scope(place), work.names.amp, [loop.model, loop.optimizer])
    if (place, line) not in trained.prepared:
        trained.prepared.append((place, line))
        work.edits.after(place, line)


def _place(work: Work, start: Start, loop: Loop) -> Statement:
    """Return the statement behind which model, optimizer and session are all there."""
    source = work.source
    optimizers, models = source.assigns(loop.optimizer), source.assigns(loop.model)
    scopes = {source.scope(assign) for assign in optimizers}
    if not optimizers or len(scopes) != 1:
        line = f"{loop.model}, {loop.optimizer} = amp.prepare({loop.model}, {loop.optimizer})"
        raise work.stop(loop.apply, f"no single place where {loop.optimizer} is made", f"`{line}` there")
    (scope,) = scopes
    here = [assign for assign in models if source.scope(assign) is scope]
    late = [start.call] if source.scope(start.call) is scope else []
    built = [call for assign in here for call in built_by(source, loop.model, assign, loop.apply)]
    others = [*optimizers, *here, *late, *additions(source, loop.model, scope), *built]
    return behind(source, source.statement(optimizers[-1]), others)


def _mode(work: Work, loop: Loop) -> None:
    """In Keras a model called without ``training=`` infers, also under a tape; in a region it trains."""
    for node in walk(loop.with_.body):
        if isinstance(node, cst.Call) and dotted(node.func) == loop.model and argument(node, "training", 1) is None:
            work.note(
                node, f"{loop.model}(...) without training=",
                "in the region it runs in training mode (Keras's own default is inference): "
                "write training=False if that is what you want",
            )  # fmt: skip
