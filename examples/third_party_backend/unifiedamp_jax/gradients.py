"""The parameters of an optimizer, their gradients, and the optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.errors import TraceContextError

from unifiedamp.backend import errors

from .scaler import Grads
from .standin import stand_in

Path = tuple[Any, ...]


@dataclass
class Trained:
    """An optimizer, its model, and the location of its parameters in the session's models.

    Attributes:
        optimizer: the ``nnx.Optimizer``.
        model: the argument of ``optimizer.update``.
        own: gradient name → parameter.
        paths: gradient name → path in the list of models; see :meth:`find`.
    """

    optimizer: nnx.Optimizer
    model: Any
    own: dict[str, nnx.Variable]
    paths: dict[str, Path] = field(default_factory=dict)

    def find(self, where: dict[int, Path]) -> list[str]:
        """Find the parameters anew, as layers may be inserted into a model; return the names of those that left it.

        Args:
            where: from :func:`locations`.
        """
        self.paths = {name: where[id(variable)] for name, variable in self.own.items() if id(variable) in where}
        return [name for name in self.own if name not in self.paths]


def locations(models: Sequence[nnx.Module]) -> dict[int, Path]:
    """Return id of a node → its path in the list of models."""
    return {id(node): path for path, node in nnx.iter_graph(nnx.List(models), graph=True)}


def bind(optimizer: Any, models: Sequence[nnx.Module], only: nnx.Module | None) -> Trained:
    """Find the parameters of ``optimizer``.

    Args:
        optimizer: an ``nnx.Optimizer``, with an attribute ``model`` or without.
        models: all prepared models.
        only: the model of an optimizer without a ``model`` attribute.

    Raises:
        WrongObjectError, PrepareError: see ``Backend.prepare``.
    """
    if not isinstance(optimizer, nnx.Optimizer):
        raise errors.WrongObjectError(
            f"amp.prepare: {type(optimizer).__name__} is neither a flax.nnx.Module nor a flax.nnx.Optimizer; "
            "an optax transformation becomes one by unifiedamp_jax.Optimizer(model, tx)"
        )
    model = getattr(optimizer, "model", only)
    if model is None:
        raise errors.PrepareError(
            "amp.prepare: an nnx.Optimizer does not know its model, and this call has several or none; "
            "use unifiedamp_jax.Optimizer(model, tx), which does"
        )
    where = locations(models)
    own = dict(sorted((_name(path), variable) for path, variable in _flat(model, optimizer.wrt)))
    strange = [name for name, variable in own.items() if id(variable) not in where]
    if strange:
        raise errors.PrepareError(
            f"amp.prepare: the optimizer trains {errors.first_names(strange)}, of a model that has not been prepared; "
            "prepare that model too, or make the optimizer over this one"
        )
    _check_slots(optimizer, model)
    trained = Trained(optimizer, model, own)
    trained.find(where)
    return trained


def check_shared(known: Sequence[Trained], fresh: Sequence[Trained]) -> None:
    """Refuse two optimizers over one parameter, whose averages follow one.

    Raises:
        PrepareError: naming the parameters.
    """
    taken = {id(variable) for one in known for variable in one.own.values()}
    for one in fresh:
        shared = [name for name, variable in one.own.items() if id(variable) in taken]
        if shared:
            raise errors.PrepareError(
                f"amp.prepare: another optimizer of this session trains {errors.first_names(shared)} already; close "
                "the session, and prepare the model with the new optimizer in another one"
            )
        taken.update(map(id, one.own.values()))


def _flat(model: Any, wrt: Any) -> Any:
    return nnx.to_flat_state(nnx.state(model, wrt, graph=True))


def _name(path: Path) -> str:
    return ".".join(map(str, path))


def _check_slots(optimizer: nnx.Optimizer, model: Any) -> None:
    """Refuse slots with other shapes than the parameters; cast slots to the parameters' dtype."""
    fit = jax.eval_shape(optimizer.tx.init, nnx.as_pure(nnx.state(model, optimizer.wrt, graph=True)))
    slots = nnx.as_pure(optimizer.opt_state)
    kinds = [jax.tree.map(lambda leaf: leaf.shape, tree) for tree in (fit, slots)]
    if jax.tree.structure(kinds[0]) != jax.tree.structure(kinds[1]) or kinds[0] != kinds[1]:
        raise errors.PrepareError("amp.prepare: the optimizer's slots are of another model: make it over this one")
    nnx.update(optimizer.opt_state, nnx.state(jax.tree.map(lambda leaf, as_: leaf.astype(as_.dtype), slots, fit)))


def differentiate(
    closure: Callable[[], Any], models: Sequence[nnx.Module], trained: Sequence[Trained], factor: Any
) -> tuple[jax.Array, list[Grads]]:
    """Return the loss of ``closure``, and the gradients of ``loss * factor`` for each of ``trained``.

    Raises:
        LossError: the loss is not a floating scalar.
        StepOrderError: ``closure`` changes a module that is not in ``models``.
    """
    known = nnx.List(models)
    wanted = {path for one in trained for path in one.paths.values()}

    def scaled(copies: Any) -> tuple[jax.Array, jax.Array]:
        with stand_in(known, copies):
            loss = _checked(closure())
        return loss.astype(jnp.float32) * factor, loss

    chosen = nnx.DiffState(0, lambda path, _: tuple(path) in wanted)
    try:
        (_, loss), state = nnx.value_and_grad(scaled, argnums=chosen, has_aux=True, graph=True)(known)
    except TraceContextError as error:
        raise errors.StepOrderError(
            "amp.backward: the closure changes a module that amp.prepare has not seen; prepare it too, or let it be "
            "an attribute of the model"
        ) from error
    found = {tuple(path): variable.get_value() for path, variable in nnx.to_flat_state(state)}
    return loss, [{name: found[path] for name, path in one.paths.items()} for one in trained]


def _checked(loss: Any) -> jax.Array:
    if not isinstance(loss, jax.Array):
        raise errors.LossError(f"amp.backward: the closure must return a loss, a JAX scalar; it returned {loss!r}")
    if loss.shape or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise errors.LossError(
            f"amp.backward: the loss must be a floating scalar, got {loss.dtype} of shape {loss.shape}; take its mean"
        )
    return loss


def _check_same(own: Iterable[Path], names: tuple[str, ...]) -> None:
    changed = {_name(path) for path in own} ^ set(names)
    if changed:
        raise errors.PrepareError(
            f"amp.step: {errors.first_names(sorted(changed))} came into the model or left it after the optimizer was "
            "made over it, and it has no slots for such a model; make optimizers over the parts, or one anew in "
            "another session"
        )


@nnx.jit(graph=True, static_argnames="names")
def apply(optimizer: Any, model: Any, grads: Grads, found: Any, names: tuple[str, ...]) -> None:
    """Run the optimizer's ``update`` unless ``found``; None means that the gradients were not checked.

    Raises:
        PrepareError: the model has other parameters than ``names``, those that the optimizer was made over.
    """

    def update(optimizer: Any, model: Any) -> None:
        own = dict(_flat(model, optimizer.wrt))
        _check_same(own, names)
        # optax requires a gradient for every parameter: use zero for those that the user removed.
        flat = {path: type(one)(grads.get(_name(path), jnp.zeros_like(one.get_value()))) for path, one in own.items()}
        state = nnx.from_flat_state(flat)
        if isinstance(optimizer, nnx.ModelAndOptimizer):
            optimizer.update(state)
        else:
            optimizer.update(model, state)

    if found is None:
        update(optimizer, model)
    else:
        nnx.cond(found, lambda *_: None, update, optimizer, model)
