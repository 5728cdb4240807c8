"""A Keras model under `MirroredStrategy`, by unifiedamp and by Keras's own mixed precision, on the same replicas.

`python benchmarks/replicas.py` trains on every GPU of this machine and writes
`benchmarks/results/replicas-tensorflow-gpu.json`; without a GPU, on two CPU devices. All configurations train in turns
in one process. Each replica has the whole batch of a recipe, and divides its loss by the number of replicas.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from native import tensorflow_amp as native
from race import Limits, Race, Standing, failure, warm_up
from recipes import REPLICAS, Parts, tiny
from record import RESULTS, hardware, write_race
from timing import Loop

import unifiedamp as ua

keras = tf.keras
NATIVE, WITH_XLA = "native AMP", "native AMP, forward and backward by XLA"
ALONE = "forward and backward by XLA and the sum, alone"
"""No step: neither check nor update. What is left to gain of a step whose forward and backward pass XLA compiles."""
FORMS = (NATIVE, WITH_XLA, "ours default", "ours max", ALONE)


class Case:
    """One recipe on all replicas.

    Args:
        parts: its native objects and batch.

    Attributes:
        strategy: new; every object of a form is made under it.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.strategy = tf.distribute.MirroredStrategy()

    def loss(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Return a replica's part of the mean loss of the global batch."""
        mean = self.parts.loss_fn(tf.cast(outputs, tf.float32), labels)
        return mean / self.strategy.num_replicas_in_sync

    def batch(self) -> tuple[Any, Any]:
        """Return the batch on each replica; each has another order of it."""

        def on_replicas(values: Any) -> Any:
            def on_replica(context: Any) -> tf.Tensor:
                return tf.roll(tf.constant(values), context.replica_id_in_sync_group, 0)

            return self.strategy.experimental_distribute_values_from_function(on_replica)

        return on_replicas(self.parts.images), on_replicas(self.parts.labels)

    def over_replicas(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs a step on all replicas; it returns the sum of their losses."""

        def train_step(images: Any, labels: Any) -> tf.Tensor:
            return self.strategy.reduce("SUM", self.strategy.run(step, (images, labels)), axis=None)

        return train_step


def by_hand(case: Case, policy: str, form: str) -> Callable[..., Any]:
    """Return the hand-written step: a Keras policy, and ``LossScaleOptimizer`` for float16."""
    parts = case.parts
    with case.strategy.scope(), native.scope(policy):
        model = parts.model()
        optimizer = parts.optimizer(model)
        if policy == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=parts.recipe.first_scale)
        optimizer.build(model.trainable_variables)

    def gradients(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = case.loss(model(images, training=True), labels)
            scaled_loss = optimizer.scale_loss(loss)
        return loss, tape.gradient(scaled_loss, model.trainable_variables)

    compute = gradients if form == NATIVE else tf.function(gradients, jit_compile=True)

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        loss, found = compute(images, labels)
        if form == ALONE:
            with tf.control_dependencies(tf.distribute.get_replica_context().all_reduce("SUM", found)):
                return tf.identity(loss)
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        return loss

    return tf.function(case.over_replicas(step))


def ours(case: Case, policy: str, mode: str) -> Callable[..., Any]:
    """Return the step of a session."""
    parts = case.parts
    amp = ua.Amp("tensorflow", policy, loss_scale=parts.recipe.loss_scale(policy), compile=mode)
    with case.strategy.scope(), amp.scope():
        model = parts.model()
        optimizer = parts.optimizer(model)
        model, optimizer = amp.prepare(model, optimizer)

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with amp.autocast():
            loss = case.loss(model(images, training=True), labels)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        amp.step(optimizer)
        return loss

    return amp.compile(case.over_replicas(step))


def made(case: Case, policy: str, form: str) -> Loop:
    """Return the loop of a form, by its name in ``FORMS``."""
    if form.startswith("ours "):
        step = ours(case, policy, form.removeprefix("ours "))
    else:
        step = by_hand(case, policy, form)
    images, labels = case.batch()
    return Loop(lambda: step(images, labels), native.finish)


def measure(name: str, policy: str, options: argparse.Namespace) -> Sequence[Standing]:
    """Return the rows of one recipe."""
    recipe = tiny(REPLICAS[name]) if options.smoke else REPLICAS[name]
    case = Case(Parts("tensorflow", recipe))
    count = case.strategy.num_replicas_in_sync
    race = Race(recipe.unit, recipe.per_step * count, Limits(options.rounds, options.seconds, options.turn))
    rows = []
    for form in options.forms:
        labels = {
            "recipe": name, "policy": policy, "batch per replica": str(recipe.batch), "configuration": form,
        }  # fmt: skip
        try:
            ready = warm_up(made(case, policy, form), native.number)
            rows.append(race.enter(labels, form, ready, stays=form == NATIVE))
        except Exception as error:
            rows.append(failure(labels, error))
    return rows


def main() -> None:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--recipes", nargs="+", default=["ResNet-50 224"], choices=REPLICAS)
    made.add_argument("--policy", default=native.low(), help="default: %(default)s")
    made.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    made.add_argument("--rounds", type=int, default=40, help="rounds of a configuration (default: %(default)s)")
    made.add_argument("--seconds", type=float, default=30.0, help="time limit of a configuration's rounds")
    made.add_argument("--turn", type=float, default=0.5, help="seconds of a turn (default: %(default)s)")
    made.add_argument("--out", type=Path, default=RESULTS)
    made.add_argument("--smoke", action="store_true", help="tiny models, to test the script; needs --out")
    options = made.parse_args()
    if options.smoke and options.out == RESULTS:
        made.error("--smoke measures nothing useful: pass another folder as --out")
    if not native.GPUS:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    options.out.mkdir(parents=True, exist_ok=True)
    before = {**hardware(native.gpu()), "replicas": max(len(native.GPUS), 2)}
    path = options.out / f"replicas-tensorflow{'-gpu' if native.GPUS else ''}.json"
    device = native.gpu()["name"] if native.GPUS else "CPU"
    rows: list[Standing] = []
    for name in options.recipes:
        rows += measure(name, options.policy, options)
        write_race(path, f"tensorflow: {before['replicas']} replicas, {device}", [NATIVE], "speed", before, rows)


if __name__ == "__main__":
    sys.exit(main())
