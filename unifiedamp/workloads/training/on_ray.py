"""Training in processes that Ray Train starts, places on hosts and starts anew after one has died."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from ...backend import Launch, read_launch
from ...config import plugins
from ...config.arguments import Arguments
from ...errors import AmpError, ConfigError, ProcessLostError, UnsupportedError
from ...output.files import write_whole
from .job import Job
from .report import Report
from .result import Result, run_result
from .run import CHECKPOINT, Run

NOISE = "Failed to query Ray Train Controller|Reporting training result|Checkpoint successfully created"
"""What Ray logs once a second, and at each checkpoint."""
COPY = ".ray_copy_"
"""What names of folders begin with that hold a copy of a checkpoint for a moment."""
RUN = ".ray_run"
"""In a run's folder: the name of the Ray run that wrote the checkpoint there."""
STORE = 128 * 2**20
"""Bytes of a local Ray's object store, in which a run puts nothing large."""


def train_on_ray(job: Job, workers: int, max_restarts: int, quiet: bool = False) -> Result:
    """Train a workload by the trainer in ``ray.train`` that its backend names, on ``RAY_ADDRESS`` or here.

    Each process has a GPU where the cluster has GPUs and the session asks for no other device. Each checkpoint is
    reported to Ray; processes that Ray starts anew go on from the last one.

    Args:
        job: what to train.
        workers: how many processes train together.
        max_restarts: how often they are started anew after one has failed.
        quiet: show no progress.

    Raises:
        ConfigError: no backend is named, this process was started by a launcher, or there are too few GPUs.
        UnsupportedError: Ray is not installed, or the backend has no trainer.
        AmpError: a process failed more often than ``max_restarts``; the message names it.
    """
    launch = read_launch(os.environ)
    if launch is not None:
        raise ConfigError(f"--launcher ray starts the processes, and {launch.launcher} started this one: use one")
    ray, trainer = _imported(job.settings.amp["backend"])
    storage = job.settings.out.absolute() / "ray"
    name = f"run_{uuid.uuid4().hex[:12]}"
    with _cluster(ray, workers) as gpus:
        job, use_gpu = _placed(_absolute(job), gpus, workers)
        fitted = trainer(
            _work,
            train_loop_config={"job": job, "folder": Path.cwd(), "quiet": quiet, "name": name},
            scaling_config=ray.train.ScalingConfig(num_workers=workers, use_gpu=use_gpu),
            run_config=ray.train.RunConfig(
                name=name, storage_path=str(storage),
                failure_config=ray.train.FailureConfig(max_failures=max_restarts),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
            ),
        )  # fmt: skip
        try:
            done = fitted.fit()
        except ray.train.TrainingFailedError as error:
            raise _reason(error, workers) from None
        finally:
            _clean_up(job.settings.out, storage / name)
    found: Result = done.return_value
    return found


def _clean_up(out: Path, copies: Path) -> None:
    """Remove copies of what is in the run's folder, those included that processes were making when they were killed."""
    for left in (copies, *out.glob(f"{COPY}*")):
        shutil.rmtree(left, ignore_errors=True)
    (out / RUN).unlink(missing_ok=True)
    if copies.parent.is_dir() and not any(copies.parent.iterdir()):
        copies.parent.rmdir()


def _imported(backend: str | None) -> tuple[Any, Any]:
    """Return Ray, and the trainer for a backend."""
    if backend is None:
        raise ConfigError(f"name a backend: --backend {' or '.join(plugins.installed_backends())}")
    place = plugins.load_backend(backend).ray_trainer
    if place is None:
        raise UnsupportedError(f"--launcher ray: backend {backend!r} has no trainer in ray.train")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", NOISE)
    try:
        import ray
        import ray.train
    except ImportError as error:
        raise UnsupportedError(
            f"--launcher ray needs Ray Train, which cannot be imported ({error}): pip install 'ray[train]>=2.60'"
        ) from None
    module, _, name = place.partition(":")
    return ray, getattr(import_module(module), name)


@contextmanager
def _cluster(ray: Any, workers: int) -> Iterator[int]:
    """Join the cluster of ``RAY_ADDRESS``, or start Ray on this host; yield how many GPUs there are."""
    own = not ray.is_initialized()
    if own:
        _start(ray, workers)
    try:
        yield int(ray.cluster_resources().get("GPU", 0))
    finally:
        if own:
            ray.shutdown()


def _start(ray: Any, workers: int) -> None:
    count, address = max(workers, os.cpu_count() or 1), os.environ.get("RAY_ADDRESS")
    options = {} if address else {"num_cpus": count, "object_store_memory": STORE, "include_dashboard": False}
    try:
        ray.init(logging_level="WARNING", **options)
    except Exception as error:
        where = f"joined at RAY_ADDRESS={address}" if address else "started on this host"
        raise AmpError(f"train: Ray could not be {where}: {_first_line(error)}") from error


def _placed(job: Job, gpus: int, workers: int) -> tuple[Job, bool]:
    """Return the job with its device, and whether each process takes a GPU."""
    amp = job.settings.amp
    use_gpu = bool(gpus) if amp["device"] is None else "cpu" not in amp["device"].lower()
    if use_gpu and gpus < workers and not os.environ.get("RAY_ADDRESS"):  # a cluster may grow
        raise ConfigError(
            f'--workers {workers}: this host has {gpus} GPUs; start one process per GPU, or write device = "cpu" in '
            "[amp]"
        )
    device = amp["device"] or ("cuda" if use_gpu else "cpu")
    placed = replace(job.settings, amp=Arguments({**amp, "device": device}, amp.origins))
    return replace(job, settings=placed), use_gpu


def _absolute(job: Job) -> Job:
    """Return the job with paths that hold on any host that sees this one's folders."""
    settings, workload = job.settings, job.settings.workload
    settings = replace(settings, out=settings.out.absolute(), workload=replace(workload, path=workload.path.absolute()))
    record, tensorboard = (path.absolute() if path else None for path in (job.record, job.tensorboard))
    return replace(job, settings=settings, record=record, tensorboard=tensorboard)


def _work(config: dict[str, Any]) -> Result:
    """Train, in one of the processes."""
    from ray import train as ray_train

    job: Job = config["job"]
    out, name = job.settings.out, config["name"]
    if config["folder"].is_dir():
        os.chdir(config["folder"])
    context, last = ray_train.get_context(), ray_train.get_checkpoint()
    size = context.get_world_size()
    launch = Launch("Ray Train", context.get_world_rank(), size, context.get_local_rank()) if size > 1 else None
    if last is not None:
        _restore(last, out)
    resume = last is not None or _is_of(name, out)  # processes may have died before Ray read their first report
    display = Report(Console(highlight=False, emoji=False, width=190, quiet=config["quiet"]))
    run = job.train(display, resume=resume, launch=launch, saved=partial(_report, name))
    return run_result(run, display.undrawn)


def _restore(last: Any, out: Path) -> None:
    """Write Ray's last checkpoint to the run's folder, whole or not at all: every process of the host does."""
    out.mkdir(parents=True, exist_ok=True)
    with last.as_directory() as folder, tempfile.TemporaryDirectory(dir=out, prefix=COPY) as own:
        os.replace(shutil.copy(Path(folder, CHECKPOINT), own), out / CHECKPOINT)


def _is_of(name: str, out: Path) -> bool:
    """Return whether the checkpoint in a folder was written by the Ray run of that name."""
    mark = out / RUN
    return mark.exists() and mark.read_text() == name and (out / CHECKPOINT).exists()


def _report(name: str, run: Run) -> None:
    """Report a checkpoint and the last epoch's numbers to Ray; every process does.

    Args:
        name: of the Ray run.
        run: what trains.
    """
    from ray import train as ray_train

    row = run.history.epochs[-1] if run.history.epochs else {}
    numbers: dict[str, Any] = {"steps": run.steps}
    numbers |= {name: row[name] for name in ("epoch", "loss", "loss_scale") if name in row} | row.get("scores", {})
    if run.ranks.rank:
        ray_train.report(numbers)
        return
    write_whole(run.settings.out / RUN, name)
    with tempfile.TemporaryDirectory(dir=run.settings.out, prefix=COPY) as folder:
        shutil.copy(run.checkpoint_path, folder)
        ray_train.report(numbers, checkpoint=ray_train.Checkpoint.from_directory(folder))


def _reason(error: Any, workers: int) -> AmpError:
    """Return why Ray gave up: an error of a workload or session as it was raised, else which processes failed."""
    failures = {rank: getattr(found, "_base_exc", found) for rank, found in _failures(error).items()}
    for _, found in sorted(failures.items()):
        if isinstance(found, AmpError) and not isinstance(found, ProcessLostError):
            return found
    # A process that died made the others fail, which say that they lost it.
    dead = {rank: found for rank, found in failures.items() if "Actor" in type(found).__name__}
    raised = {rank: found for rank, found in failures.items() if not isinstance(found, ProcessLostError)}
    said = "; ".join(
        f"rank {rank}: {_first_line(found)}" for rank, found in sorted((dead or raised or failures).items())
    )
    return AmpError(f"train: Ray Train gave up, of {workers} processes failed {said or _first_line(error)}")


def _failures(error: Any) -> dict[int, Any]:
    return getattr(error, "worker_failures", None) or {}


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
