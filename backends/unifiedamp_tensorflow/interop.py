"""What ``unifiedamp.compat`` and ``unifiedamp.integrations`` need beyond the roles."""

from __future__ import annotations

from collections.abc import Callable

from unifiedamp.backend import SessionSpec, errors

from ._types import Model, Optimizer
from .distributed.distributed import TensorFlowDistributed
from .distributed.strategies import active_replicas
from .training.deferred_optimizer import DeferredSteps, deferred_class
from .training.fit import Fitting
from .training.fit_run import FitRun
from .training.prepare_checks import check_optimizer
from .training.prepared_objects import PreparedObjects
from .training.scaler import DeviceScaler
from .training.session_rewrite import SessionRewrite
from .training.steps import Steps


class TensorFlowInterop:
    """The parts of a session that Keras 2's and TensorFlow 1's interfaces and Keras's callback use.

    Args:
        spec: the session's.
        distributed: its replicas.
        scaler: its loss scale; None without one.
        steps: ends its steps.
        prepared: its models and optimizers.
        fitting: follows the models' ``fit``.
    """

    def __init__(
        self, spec: SessionSpec, distributed: TensorFlowDistributed, scaler: DeviceScaler | None, steps: Steps,
        prepared: PreparedObjects, fitting: Fitting,
    ) -> None:  # fmt: skip
        self._spec, self._distributed, self._scaler, self._steps = spec, distributed, scaler, steps
        self._prepared, self._fitting = prepared, fitting

    def wrap_optimizer(self, optimizer: Optimizer, after_step: Callable[[], None]) -> Optimizer:
        """Return a Keras optimizer under the session's loss scale, for loops of Keras 2's form.

        It joins the session when it is built.

        Args:
            optimizer: a Keras optimizer.
            after_step: called after each eager step.

        Raises:
            WrongObjectError, PrepareError: see ``Training.prepare``.
            UnsupportedError: the session's policy has ``update``.
        """
        assert self._scaler is not None
        check_optimizer(optimizer)
        if self._spec.policy.update is not None:
            raise errors.UnsupportedError(
                f"update={self._spec.policy.update!r} is for optimizers given to amp.prepare with their model, whose "
                "slots it makes; leave update out in code of Keras 2's form"
            )
        self._distributed.place(active_replicas(self._spec.reduce_dtype), bool(self._prepared.optimizers))
        steps = DeferredSteps(self._scaler, self._distributed.replicas, self._steps, after_step)
        wrapped: Optimizer = deferred_class()(optimizer, steps)
        return wrapped

    def fit_run(self, model: Model) -> FitRun | None:
        """Return the call of a model's ``fit`` that is running; None where there is none.

        Raises:
            WrongObjectError: the model was not prepared, or is compiled with an optimizer of another session, so that
                its ``fit`` is not followed.
        """
        if not any(model is known for known in self._prepared.models):
            raise errors.WrongObjectError(
                f"this {type(model).__name__} was not given to this session's amp.prepare, which follows the fit of "
                "the models that it is given: prepare the model that fit trains"
            )
        if self._prepared.is_elsewhere(getattr(model, "optimizer", None)):
            raise errors.WrongObjectError(
                f"this {type(model).__name__} is compiled with an optimizer that another session prepared, which "
                "follows its fit: give the callback that session"
            )
        return self._fitting.run_of(model)

    def session_rewrite(self) -> SessionRewrite:
        """Return the session's policy and loss scale for ``tf.compat.v1.Session`` training."""
        return SessionRewrite(self._spec.policy, self._spec.loss_scale)
