"""What a harness may leave out: a test that asks for it is skipped then, and says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy.typing as npt

from ..loss_scale import LossScale
from ..policy import Policy

if TYPE_CHECKING:  # pytest rewrites the asserts of what is imported after the kit's plugin
    from .ranks import Answers, RankCase, RankKind

Array = npt.NDArray[Any]


class NotInFramework(Exception):
    """The framework has no such thing, or the harness does not make it."""


class OptionalHarness:
    """Objects that not every framework has. Override what yours does; everything is plain framework code.

    Attributes:
        rank_kinds: name → each way in which ranks train together here; :meth:`run_ranks` runs them.
    """

    rank_kinds: Mapping[str, RankKind] = {}

    def run_ranks(self, kind: str, count: int, form: str, cases: Sequence[RankCase]) -> Answers:
        """Train cases on several ranks, all of them in the same processes.

        Args:
            kind: of ``rank_kinds``.
            count: how many ranks: of the kind's ``counts``, or 1.
            form: how steps run, of ``Harness.forms``.
            cases: what to train; ``unifiedamp.conformance.ranks`` has the loop (``play_all``) and the processes
                (``RankProcesses``, ``answers_of``).

        Returns:
            Name of the case → what each rank did, or why it did not end.
        """
        self._lacks("ranks that train together")

    def grouped_sgd(self, model: Any, learning_rates: Sequence[float]) -> Any:
        """Return SGD with a parameter group for each parameter of the model, in order, with these learning rates."""
        self._lacks("parameter groups")

    def decaying_sgd(self, model: Any, learning_rate: float, weight_decay: float) -> Any:
        """Return SGD with weight decay, of the framework's kind."""
        self._lacks("weight decay")

    def scheduled_sgd(self, model: Any, learning_rates: Sequence[float]) -> Any:
        """Return SGD that chooses its learning rate by its own count of updates: these in turn, and then the last."""
        self._lacks("optimizers that hold a schedule")

    def rescaled_sgd(self, model: Any, learning_rate: float, factor: float) -> Any:
        """Return SGD with the framework's own setting by which gradients are multiplied before they are applied."""
        self._lacks("a setting by which optimizers multiply gradients")

    def sparse(self, table: Array, learning_rate: float) -> tuple[Any, Any]:
        """Return an embedding with these float32 rows whose gradient is sparse, and SGD over it.

        The model takes a native vector of row numbers and returns the scalar sum of all numbers in the rows picked; a
        row picked twice counts twice.
        """
        self._lacks("sparse gradients")

    def wide_probe(self, values: Sequence[float]) -> Any:
        """Return a model like ``probe``'s whose parameters ``w1``, ``w3``, … are float64."""
        self._lacks("parameters of two dtypes under one optimizer")

    def complex_probe(self, values: Sequence[complex]) -> Any:
        """Return a model with complex64 parameters ``w0``, ``w1``, … of shape (1,) and these values, all trainable.

        Called with a native float32 vector ``x`` of twice the length it returns the float32 scalar
        ``sum(real(w_i) * x_2i + imag(w_i) * x_2i+1)``, so that plain SGD with learning rate 1 takes
        ``x_2i + 1j * x_2i+1`` from ``w_i``.
        """
        self._lacks("complex parameters")

    def layer_sgd(self, model: Any, layer: str, learning_rate: float) -> Any:
        """Return SGD over the parameters of one layer, ``layer0`` …, of what :meth:`mlp` returned."""
        self._lacks("optimizers over a part of a model")

    def run_op_on(self, op: str, dtypes: Sequence[str]) -> str:
        """Run one operation as ``Harness.run_op`` does, ``low_precision_op`` at least, on inputs of these dtypes.

        Args:
            op: the operation.
            dtypes: of its two inputs, "float32" or "bfloat16" each; both are made outside of regions.

        Returns:
            The dtype name that it computed in (of its output).
        """
        self._lacks("operations on inputs of two dtypes")

    def native_calls(self, optimizer: Any) -> Mapping[str, Callable[[], object]]:
        """Return name → call, of each call of a prepared optimizer's own that takes its gradients or changes them."""
        self._lacks("calls of an optimizer that take gradients")

    def fit(self, model: Any, optimizer: Any, x: Array, y: Array, batch_size: int) -> float:
        """Train a prepared model by the framework's own loop, on the mean squared error, through the batches once, in
        order.

        Returns:
            The mean loss of the batches, as the loop reports it.
        """
        self._lacks("its own training loop")

    def native_loop(self, amp: Any, model: Any, optimizer: Any, checks_first: bool) -> Callable[[Any], None]:
        """Return a step in the form that the framework documents for its own mixed precision, whose scaler is the
        session's.

        Args:
            amp: a session with a loss scale.
            model: what :meth:`Harness.probe` returned, not prepared.
            optimizer: what :meth:`Harness.sgd` returned, not prepared.
            checks_first: divide the gradients by the scale in a separate call, before the optimizer's step, where
                the framework leaves that out otherwise.

        Returns:
            What takes a native vector, for the model, and makes a step.
        """
        self._lacks("a native scaler that the session's replaces")

    def set_trainable(self, model: Any, layer: str, trainable: bool) -> None:
        """Freeze or unfreeze the parameters of one layer, the framework's own way, after ``amp.prepare``.

        For frameworks that do not fix what trains when the optimizer is made.

        Args:
            model: what :meth:`mlp` returned.
            layer: the layer's name, ``layer0`` ….
            trainable: whether its parameters are to train.
        """
        self._lacks("layers that are frozen later")

    def set_parameters(self, model: Any, values: Mapping[str, Array]) -> None:
        """Set parameters of a prepared model in place, the framework's own way (as loading weights does).

        Args:
            model: the model.
            values: name, as ``Harness.parameters`` gives it → the new value.
        """
        self._lacks("parameters that are set in place")

    def cast(self, tensor: Any, dtype: str) -> Any:
        """Return a native tensor in the dtype named, by an operation that gradients go through."""
        self._lacks("casts")

    def selections(self, tensor: Any) -> Mapping[str, Any]:
        """Return native scalars of a native (rows, columns) tensor, each by an operation of the framework's own through
        which gradients reach a part of it: ``largest``, the sum of each row's largest number; ``top``, that of its two
        largest; ``positive``, that of numbers times whether they are positive; ``detached``, that of numbers times
        themselves, the second ones without a gradient.
        """
        self._lacks("operations that select numbers")

    def structured(self, weight: Array, bias: Array) -> Any:
        """Return a model of a dense layer with this (inputs, outputs) weight and bias.

        It returns a tuple: the layer's output, and a list of twice the output and of the place of each row's largest
        number, whole numbers.
        """
        self._lacks("models that return structures")

    def mapped(self, weight: Array, bias: Array) -> Any:
        """Return a model of a dense layer with this (inputs, outputs) weight and bias.

        It returns a dict, or a subclass of one: ``output``, the layer's output, and ``pair``, a named tuple of twice
        the output, ``double``, and the place of each row's largest number, ``place``, whole numbers.
        """
        self._lacks("models that return mappings")

    def kept_dense(self, weight: Array, bias: Array) -> Any:
        """Return a model of a dense layer with this (inputs, outputs) weight and bias, which its author keeps in
        float32 under mixed policies by the framework's own means.
        """
        self._lacks("layers that choose their own dtype")

    def wide_dense(self, weight: Array, bias: Array) -> Any:
        """Return a model of a float64 dense layer, whatever the policy, with this (inputs, outputs) weight and bias."""
        self._lacks("layers in float64")

    def layer_norm(self, size: int) -> Any:
        """Return a model of a dense layer ``dense`` and a layer normalization ``norm``, both of this size."""
        self._lacks("layer normalization")

    def residual(self, weight: Array) -> Any:
        """Return a model of a dense layer ``dense`` with this square weight and no bias, whose output is added to its
        float32 input.
        """
        self._lacks("layers whose outputs are added to inputs")

    def joined(self, weights: Sequence[Array]) -> Any:
        """Return a model of two dense layers ``left`` and ``right`` with these weights (inputs, outputs) and no bias,
        over one input, and a layer ``join`` that takes both outputs and returns their product, number by number.
        """
        self._lacks("layers of two inputs")

    def sized(self, kind: str) -> Any:
        """Return a model of one layer, for ``advise``: ``depthwise``, a depthwise convolution of 10 channels;
        ``transposed``, a transposed convolution of 10 channels to 12; ``recurrent``, an LSTM of 13 inputs and 7 units;
        ``late convolution`` and ``late transposed``, of 10 channels to 12, which know their inputs from the first
        batch on.
        """
        self._lacks("layers of other kinds")

    def dropout(self, size: int, rate: float) -> Any:
        """Return a model of a dense layer ``dense`` of this size and, after it, a dropout ``drop`` of this rate."""
        self._lacks("dropout")

    def nested_norm(self, size: int) -> Any:
        """Return a model of one block ``block`` that holds what :meth:`layer_norm` returns the layers of."""
        self._lacks("blocks that hold layers")

    def fixed_graph(self, folder: Path) -> Any:
        """Return a model read from a file that was saved in ``folder``, whose precision no policy changes."""
        self._lacks("models of a fixed precision")

    def refused_optimizers(self, model: Any) -> Mapping[str, Any]:
        """Return name → optimizer over what :meth:`Harness.probe` returned, which no session can check gradients of
        before they change weights, which scale the loss themselves, or whose ranks do not decide together.
        """
        self._lacks("optimizers that cannot be checked")

    def refused_scopes(self) -> Mapping[str, AbstractContextManager[Any]]:
        """Return name → context of the framework under which a model would be spread in ways that no session trains."""
        self._lacks("ways to spread a model that cannot train")

    def replace_weight(self, model: Any, layer: str, factor: float) -> None:
        """Give a layer, ``layer0`` …, of what :meth:`Harness.mlp` returned another weight object: the old times this.

        It is frozen, since no optimizer has it. For frameworks whose layers may get another object.
        """
        self._lacks("weights that are replaced by other objects")

    def extend(self, optimizer: Any, model: Any) -> None:
        """Add a model's parameters to a prepared optimizer that is in use."""
        self._lacks("optimizers that take parameters later")

    def put_layer(self, model: Any, layer: str, weight: Array, bias: Array) -> Any:
        """Put a dense layer with this (inputs, outputs) weight and bias at the end of what :meth:`Harness.mlp`
        returned, after ``amp.prepare``: as a further one, or in the place of the last, whichever has the name.

        Returns:
            The layer, a model of its kind for :meth:`Harness.sgd`.
        """
        self._lacks("layers that are added later")

    def cast_model(self, model: Any, dtype: str) -> None:
        """Cast the parameters of a prepared model, in place, the framework's own way."""
        self._lacks("models that are cast in place")

    def rest(self, model: Any, layer: str) -> None:
        """Put one layer of a model in evaluation mode, and leave the others as they are."""
        self._lacks("layers with a mode each")

    def other_state(self) -> AbstractContextManager[Any]:
        """Return a context in which the process-wide settings that policies touch are not the framework's defaults."""
        self._lacks("process-wide settings that a policy touches")

    def clipped_device_run(
        self, gradients: Sequence[tuple[float, float]], max_norm: float, loss_scale: LossScale
    ) -> list[list[float]]:
        """Do one clipped step on two devices (or ranks), with SGD of learning rate 0.1.

        Args:
            gradients: for each of the two devices, the true gradients of two parameters of value 1.
            max_norm: for ``clip_grad_norm``.
            loss_scale: the session's.

        Returns:
            For each device, the two parameters afterwards.
        """
        self._lacks("a clipped step on two devices")

    def device_steps(
        self,
        policy: str | Policy,
        gradients: Sequence[Sequence[float | None]],
        loss_scale: LossScale,
        clip_value: float | None = None,
    ) -> list[tuple[float, float]]:
        """Do steps on two devices that sum gradients, with SGD of learning rate 2**-13.

        Args:
            policy: the session's; under one that keeps parameters in 16 bits, with ``master_weights=True``.
            gradients: for each step, the true gradient of a parameter of value 1 on each of the two devices; None for
                a device that gets no batch in that step.
            loss_scale: the session's.
            clip_value: for ``clip_grad_value`` before each step; None leaves gradients as they are.

        Returns:
            For each device, the parameter afterwards, and what was trained: its master, or itself.
        """
        self._lacks("steps on two devices that sum gradients")

    def recorded_device_run(self, gradients: Sequence[float], loss_scale: LossScale) -> Mapping[str, Sequence[int]]:
        """Record one step on two devices that one process drives.

        Args:
            gradients: the true gradient of a parameter on each of the two devices.
            loss_scale: the session's.

        Returns:
            Name → the counts ``true`` of ``GradientCounts``.
        """
        self._lacks("a recorded step on two devices of one process")

    def attached(self, obj: Any) -> Any:
        """Return something comparable that tells what a session attached to a model or an optimizer: hooks, replaced
        methods, classes, dtype policies, modes. This default knows the class and the attributes' names.
        """
        return type(obj), sorted(vars(obj))

    def attention(self, projections: Sequence[Array], heads: int) -> Any:
        """Return a model of self-attention over inputs of shape (batch, length, width), in a layer ``attention``.

        Args:
            projections: of queries, keys, values and outputs; each has shape (width, width) and no bias. The columns of
                the first three, and the rows of the last, are those of the heads, one after the other.
            heads: of width ``width / heads``; scores are divided by its square root.
        """
        self._lacks("a layer of attention")

    def _lacks(self, what: str) -> NoReturn:
        raise NotInFramework(f"the harness of {getattr(self, 'backend', '?')!r} has none of this: {what}")
