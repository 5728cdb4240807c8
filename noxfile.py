"""Everything CI checks, one session each: `bash scripts/test.sh` runs all, `-s NAME` some."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "venv"
nox.options.envdir = ".venv/nox"
nox.options.error_on_missing_interpreters = True

PYTHON = "3.11"
PACKAGES = ("unifiedamp", "unifiedamp_torch", "unifiedamp_tensorflow", "unifiedamp_mxnet", "unifiedamp_examples/models")


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    session.install("-c", "ci/tools.txt", "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(python=PYTHON)
def types(session: nox.Session) -> None:
    """Mypy, strict on core."""
    session.install(
        "-c", "ci/tools.txt", "-c", "ci/main.txt", "mypy", "tomlkit", "-e", ".[conformance,migrate,report,tensorboard]"
    )
    session.run("mypy")


@nox.session(python=PYTHON)
def imports(session: nox.Session) -> None:
    """The import contracts between core, backends and frameworks."""
    session.install("-c", "ci/tools.txt", "-c", "ci/main.txt", "import-linter", "-e", ".")
    session.run("lint-imports")


@nox.session(python=PYTHON)
def wheel(session: nox.Session) -> None:
    """Build wheel and sdist: the wheel holds all packages, each build gives the same bytes, the sdist tests itself."""
    out = Path(session.create_tmp()).absolute() / "built"
    shutil.rmtree(out, ignore_errors=True)
    session.install("-c", "ci/tools.txt", "hatchling")
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
    missing = {"unifiedamp/py.typed", *(f"{package}/__init__.py" for package in PACKAGES)} - names
    if missing:
        session.error(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    session.install(str(wheel))
    with session.chdir(out):  # away from the checkout, so that only the wheel can be imported
        code = "import unifiedamp as ua; print('unifiedamp', ua.__version__, [*ua.available_backends()])"
        session.run("python", "-c", code)
        session.run("unifiedamp", "--help", silent=True)
    session.install("-c", "ci/main.txt", "-e", f"{unpacked}[conformance]")
    with session.chdir(unpacked):
        session.run("python", "-m", "pytest", "-q", "tests/core", env={"UNIFIEDAMP_TEST_FUZZ": "50"})


def _built(session: nox.Session, folder: Path) -> tuple[Path, Path]:
    """Build what lies in the present folder; return wheel and sdist."""
    session.run("python", "-m", "hatchling", "build", "-d", str(folder), silent=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


REPORTS = Path(".venv/reports").absolute()
# Two processes share the tests; each computes with one thread, so that they do not wait for each other.
SHARED = ("-n", "2", "--dist", "worksteal")
EFFORT = {"UNIFIEDAMP_TEST_FUZZ": "10000", "UNIFIEDAMP_TEST_KILLS": "200"}
# What the main environment proves once need not be proved again in the older ones: the commands and what they compute
# with, and what happens to a process and its files when it is killed. That a saved run goes on is each one's to prove.
PROVED = ["commands", "compare_parts", "migrate/test_any_python.py", "recipe/test_recipe_killed.py"]
PROVED += [
    f"test_{name}.py" for name in ("author_path", "benchmarks", "checkpoint_file", "killed_training", "kit", "mutants")
]
LESS = ("--amp-trajectories", "200", *[part for path in PROVED for part in ("--ignore", f"tests/{path}")])


def run_tests(session: nox.Session, environment: str, *options: str, **variables: str) -> None:
    """Install the environment that ``ci/<environment>.txt`` fixes and run the suite in it."""
    session.install("-r", f"ci/{environment}.txt", "-e", ".[examples,test]")
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = ("--amp-json", str(REPORTS / f"{environment}.json"))
    variables.setdefault("OMP_NUM_THREADS", "1")
    session.run("python", "-m", "pytest", *SHARED, *options, *report, *session.posargs, env=variables)


@nox.session(python=PYTHON)
def tests(session: nox.Session) -> None:
    """The suite on torch, TensorFlow with Keras 3 and MXNet 1.9, in one process."""
    run_tests(session, "main", **EFFORT)


@nox.session(python=PYTHON)
def tests_keras2(session: nox.Session) -> None:
    """The suite on TensorFlow with Keras 2, and MXNet 1.9 on an older numpy."""
    run_tests(session, "keras2", *LESS)


@nox.session(python=PYTHON)
def tests_mxnet2(session: nox.Session) -> None:
    """The suite on MXNet 2."""
    run_tests(session, "mxnet2", *LESS)


@nox.session(python=PYTHON)
def tests_jax(session: nox.Session) -> None:
    """The third-party backend, a distribution of its own: its tests and the conformance suite, on JAX."""
    session.install("-r", "ci/jax.txt", "-e", ".[examples,test]", "-e", "examples/third_party_backend")
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = ("--amp-json", str(REPORTS / "jax.json"))
    options = (*SHARED, "--amp-trajectories", "300", *report, *session.posargs)
    session.run("python", "-m", "pytest", "examples/third_party_backend/tests", *options)
