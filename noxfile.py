"""Everything CI checks, one session each: `bash scripts/test.sh` runs all, `-s NAME` some.

`UNIFIEDAMP_TEST_EFFORT=full` makes every session try as hard as it can; see `tests/effort.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nox
import nox.command

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
from environments import COMPILED, FULL, KERAS2, LESS, MXNET_PROVED, SOME, SUITE, SUITE_ONLY, WITHOUT_RANKS, in_sample

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "uv|venv"
nox.options.envdir = ".venv/nox"
nox.options.error_on_missing_interpreters = True
nox.options.download_python = "never"

PYTHON = "3.11"

# Each process reads compiled modules, also where Python is told to write none: importing a framework then takes a third
# of the time. uv compiles none when it installs. They lie apart from the sources, and outlive an environment made anew.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(".venv/bytecode").absolute()))


def find_python(version: str) -> str | None:
    """Return an interpreter of this version, on the path or of pyenv; None where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))]
    for path in filter(None, found):
        if not subprocess.run([path, "-c", ""], check=False, capture_output=True, timeout=60).returncode:
            return path
    return None


NEWER = find_python("3.13")
# What fails soon first, then long ones: `everything` starts them in this order.
nox.options.sessions = [
    "lint", "imports", "tests_ray", "tests", "tests_keras2", "tests_jax", "tests_mxnet2", "tests_integrations",
    *(["tests_python313"] if NEWER else []),
    "tests_numpy2", "types", "wheel", "site",
]  # fmt: skip
PACKAGES = ("unifiedamp", "unifiedamp_torch", "unifiedamp_tensorflow", "unifiedamp_mxnet")
FILES = ("unifiedamp/py.typed", "unifiedamp/config/amp.schema.json")


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    install(session, "--group", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python=PYTHON)
def types(session: nox.Session) -> None:
    """Mypy, strict on core; mypy and pyright on the quickstarts and on calls that they must take or refuse."""
    install(session, "--group", "types", "-e", ".[conformance,examples,migrate,report,tensorboard]")
    session.run("mypy")
    REPORTS.mkdir(parents=True, exist_ok=True)
    tests = ("tests/test_types.py", "tests/workloads/test_typed_files.py")
    session.run("python", "-m", "pytest", "-q", *tests, "--junitxml", str(REPORTS / "types.xml"))


@nox.session(python=PYTHON)
def imports(session: nox.Session) -> None:
    """The import contracts between core, backends and frameworks."""
    install(session, "--group", "imports", "-e", ".")
    session.run("lint-imports")


@nox.session(python=PYTHON)
def site(session: nox.Session) -> None:
    """Build the documentation site into .venv/site; a broken link, anchor or reference is an error."""
    install(session, "--group", "site")
    session.run("mkdocs", "build", "--strict", "--quiet", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(python=PYTHON)
def wheel(session: nox.Session) -> None:
    """Build wheel and sdist: the wheel holds all packages, each build gives the same bytes, the sdist tests itself."""
    out = Path(session.create_tmp()).absolute() / "built"
    shutil.rmtree(out, ignore_errors=True)
    install(session, "--group", "wheel")
    wheel, sdist = _built(session, out / "first")
    again, _ = _built(session, out / "second")
    with tarfile.open(sdist) as archive:
        archive.extractall(out, filter="data")
    unpacked = out / sdist.name.removesuffix(".tar.gz")
    with session.chdir(unpacked):
        others = (again, _built(session, out / "third")[0])
    if any(other.read_bytes() != wheel.read_bytes() for other in others):
        session.error("the wheel differs from one build to the next")
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = {*FILES, *(f"{package}/__init__.py" for package in PACKAGES)} - names
    if missing:
        session.error(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    install(session, str(wheel))
    with session.chdir(out):  # away from the checkout, so that only the wheel can be imported
        code = "import unifiedamp as ua; print('unifiedamp', ua.__version__, [*ua.available_backends()])"
        session.run("python", "-c", code)
        session.run("unifiedamp", "--help", silent=True)
    install(session, "-e", f"{unpacked}[conformance]")
    with session.chdir(unpacked):
        session.run("python", "-m", "pytest", "-q", "tests/core", env={"UNIFIEDAMP_TEST_EFFORT": "quick"})


def _built(session: nox.Session, folder: Path) -> tuple[Path, Path]:
    """Build what lies in the present folder; return wheel and sdist."""
    session.run("python", "-m", "hatchling", "build", "-d", str(folder), silent=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


REPORTS = Path(".venv/reports").absolute()
LIMIT = 12 * 3600 if FULL else 4800
"""Seconds that one session of ``everything`` may take."""
# Two processes share the tests; each computes and compiles with one thread, so that they do not wait for each other.
# UNIFIEDAMP_TEST_PROCESSES=1 leaves the other core to another session.
PROCESSES = int(os.environ.get("UNIFIEDAMP_TEST_PROCESSES", "2"))
# Also where it is one: of a process that crashes, pytest-xdist names the test, and goes on in another.
SHARED = ("-n", str(PROCESSES), "--dist", "worksteal")
ALONE = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
# Steps of different sessions that come to the same program: XLA compiles it once, and runs what it compiled before.
JAX_CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(Path(".venv/jax_cache").absolute()),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def run_tests(session: nox.Session, environment: str, trajectories: int, *options: str) -> None:
    """Install the dependency group of this name and run the suite in it."""
    install(session, "--group", environment, "-e", ".[examples,test]")
    pytest(session, environment, trajectories, *options)


def pytest(session: nox.Session, environment: str, trajectories: int, *options: str) -> None:
    """Run tests in two processes; reports of backends and of tests are written to ``.venv/reports``."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    effort = ("--amp-trajectories", str(10_000 if FULL else trajectories), "--amp-soak", "100000" if FULL else "0")
    report = ("--amp-json", str(REPORTS / f"{environment}.json"), "--junitxml", str(REPORTS / f"{environment}.xml"))
    command = ("python", "-m", "pytest", *SHARED, *effort, *report, *options, *session.posargs)
    session.run(*command, env={**ALONE, "UNIFIEDAMP_TEST_ENVIRONMENT": environment})


def passed(session: nox.Session, *arguments: Any) -> bool:
    """Call :func:`pytest`; return whether all tests passed."""
    try:
        pytest(session, *arguments)
    except nox.command.CommandFailed:
        return False
    return True


@nox.session(python=PYTHON)
def tests(session: nox.Session) -> None:
    """The suite on torch, TensorFlow with Keras 3 and MXNet 1.9, in one process; everything else on one of them."""
    # The kit's mutants all die of 20 trajectories, those of ranks of 12 steps; these are for what no mutant stands for.
    run_tests(session, "main", 100, "--sample-backends", *COMPILED)


@nox.session(python=PYTHON)
def tests_keras2(session: nox.Session) -> None:
    """The suite on TensorFlow with Keras 2; MXNet's own tests on an older numpy."""
    install(session, "--group", "keras2", "-e", ".[examples,test]")
    options = ("--proved-backend", "mxnet", *MXNET_PROVED, *LESS)
    # One process after the other: TensorFlow keeps what it has compiled, and one for all would need 10 GiB.
    failed = [name for name, paths in KERAS2.items() if not passed(session, name, 100, *options, *paths)]
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session(python=PYTHON)
def tests_mxnet2(session: nox.Session) -> None:
    """The suite on MXNet 2, beside the numpy of the main environment."""
    run_tests(session, "mxnet2", 100, "--ignore", "tests/core", *LESS)


@nox.session(python=PYTHON)
def tests_numpy2(session: nox.Session) -> None:
    """The eager suite on numpy 2: of torch, and of TensorFlow and core where Python 3.13 does not run it."""
    run_tests(session, "numpy2", 100, *((*SUITE_ONLY, "--amp-backend", "torch") if NEWER else SOME))


@nox.session(python=NEWER or PYTHON)
def tests_python313(session: nox.Session) -> None:
    """TensorFlow's eager suite on Python 3.13 and numpy 2; runs by default where there is a Python 3.13."""
    run_tests(session, "python313", 100, *SOME)


@nox.session(python=PYTHON)
def tests_jax(session: nox.Session) -> None:
    """The third-party backend, a separate distribution: its tests and the conformance suite, on JAX."""
    install(session, "--group", "jax", "-e", ".[examples,test]", "-e", "examples/third_party_backend")
    session.env.update(JAX_CACHE)
    pytest(session, "jax", 100, *COMPILED, *in_sample("any"), "examples/third_party_backend/tests")


@nox.session(python=PYTHON)
def tests_integrations(session: nox.Session) -> None:
    """Inside other people's trainers and tools: Lightning, Hugging Face, Accelerate, W&B, MLflow, Hydra."""
    install(session, "--group", "integrations", "-e", ".[examples,test]")
    pytest(session, "integrations", 100, "tests/integrations", "tests/test_doc_code.py")


@nox.session(python=PYTHON)
def tests_ray(session: nox.Session) -> None:
    """`unifiedamp train --launcher ray`, for torch and TensorFlow: a worker is killed, and all train as one process."""
    run_tests(session, "ray", 100, "tests/integrations/test_ray.py")


@nox.session(python=False)
def everything(session: nox.Session) -> None:
    """All that `nox` runs, in less time: `tests` in two processes; beside and after it the others, in one each.

    One process more than there are cores, since each waits for something a quarter of the time. ``tests_ray``, which
    waits for Ray most of its time, runs beside them.
    """
    for path in REPORTS.glob("*.xml"):
        path.unlink()
    places, running = threading.Semaphore(PROCESSES + 1), {}
    with ThreadPoolExecutor(PROCESSES + 2) as pool:
        for name in nox.options.sessions:
            processes = {"tests": PROCESSES, "tests_ray": 0}.get(name, 1)
            for _ in range(processes):
                places.acquire()
            running[name] = pool.submit(_apart, name, session.posargs, max(1, processes))
            running[name].add_done_callback(lambda _, processes=processes: places.release(processes))
    failed = {name: lines for name, future in running.items() if (lines := future.result()) is not None}
    for name, lines in failed.items():
        print(f"\nThe end of {name}, which failed:\n{''.join(lines)}", end="", flush=True)
    if failed:
        session.error(f"failed: {', '.join(failed)}")
    session.run("python", "scripts/never_ran.py", str(REPORTS), external=True)


def _apart(name: str, arguments: list[str], processes: int) -> deque[str] | None:
    """Run a session in a separate nox; return the last lines of one that fails.

    What one in a single process writes is shown when it ends: others run besides.
    """
    line = [sys.executable, "-m", "nox", "-s", name, "--", *arguments]
    environment = {**os.environ, "UNIFIEDAMP_TEST_PROCESSES": str(processes)}
    lines, last = [], deque(maxlen=60)
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        began = time.monotonic()
        limit = threading.Timer(LIMIT, run.send_signal, (signal.SIGINT,))  # at which nox ends pytest
        limit.start()
        for each in run.stdout:
            if processes > 1:
                print(each, end="", flush=True)
            else:
                lines.append(each)
            if not each.startswith("SKIPPED"):
                last.append(each)
        limit.cancel()
    if time.monotonic() - began >= LIMIT:
        last.append(f"{name} was ended after {LIMIT} seconds: see LIMIT in noxfile.py.\n")
    print("\n", *lines, sep="", end="", flush=True)
    return last if run.returncode else None


@nox.session(python=PYTHON, reuse_venv=True)
def quick(session: nox.Session) -> None:
    """The inner loop: lint, types, contracts, core, the toy backend and torch's eager form through the suite."""
    installed = Path(session.create_tmp()) / "installed"
    wanted = Path("pyproject.toml").read_text(encoding="utf-8")
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
        install(session, "--group", "quick", "-e", ".[examples,test]")
        installed.write_text(wanted, encoding="utf-8")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", silent=True)
    session.run("mypy")
    options = ("--amp-trajectories", "30", "-p", "no:cacheprovider", "tests/core", SUITE, *WITHOUT_RANKS)
    effort = {**ALONE, "UNIFIEDAMP_TEST_EFFORT": "quick"}
    session.run("python", "-m", "pytest", *SHARED, "-q", *options, *session.posargs, env=effort)


# -- environments: made by uv, which shares one copy of each package among them, or by pip -----------------------------


def install(session: nox.Session, *what: str) -> None:
    """Install with uv as pip would here, or with a pip that knows dependency groups."""
    if session.venv_backend == "uv":
        session.env.update(uv_settings())
    else:
        session.install("--quiet", "--upgrade", "pip>=25.1")
    session.install(*what)


def uv_settings() -> dict[str, str]:
    """Return pip's configuration as uv's variables; uv does not read pip's files."""
    line = [sys.executable, "scripts/uv_settings.py"]
    said = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60).stdout
    return dict(each.split("=", 1) for each in said.splitlines())
