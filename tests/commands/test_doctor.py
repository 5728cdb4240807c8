"""``unifiedamp doctor``, and what it reads of the machine."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from pathlib import Path

import pytest

import unifiedamp as ua
from unifiedamp import machine
from unifiedamp.backend import Support
from unifiedamp.workloads import float8_width, probe
from unifiedamp.workloads.workers import Worker, WorkerError


def test_json_is_what_was_found(command, monkeypatch, examined):
    monkeypatch.setattr(importlib.import_module("unifiedamp.cli.doctor"), "examine", lambda *_: examined)
    done = command("doctor", "--json")
    assert done.json == json.loads(json.dumps(examined))
    assert done.code == 0


def test_every_registered_backend_is_there(examined):
    for name, said in examined["backends"].items():
        info = ua.available_backends()[name]
        assert (said["installed"], said["version"]) == (info.installed, info.version)
        if info.installed:
            assert said["best"] in said["policies"]
            assert said["policies"]["float32"]["ok"]


def test_its_answers_are_the_capabilities(examined, backend):
    """The worker, a separate process, says what the capabilities in this one say."""
    known = ua.available_backends()[backend].capabilities.policies
    said = examined["backends"][backend]["policies"]
    assert {name: (one["ok"], one["helps"], one["reason"]) for name, one in said.items()} == {
        name: (one.ok, one.helps, one.reason) for name, one in known.items()
    }


def test_what_gains_nothing_is_told_apart(backend):
    """By structure: a policy that runs says whether it helps, float32 has nothing to say, what cannot run neither."""
    for name, answer in ua.available_backends()[backend].capabilities.policies.items():
        assert answer.ok or answer.helps is None
        if name == "float32":
            assert answer.helps is None
        elif answer.ok:
            assert isinstance(answer.helps, bool)
            assert answer.reason


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Support(True), "runs"),
        (Support(True, "Tensor Cores", True), "runs"),
        (Support(True, "no units", False), "runs but gains nothing"),
        (Support(False, "no kernel"), "cannot"),
    ],
)
def test_verdicts(answer, words):
    assert probe.verdict(answer) == words
    assert probe.verdict({"ok": answer.ok, "helps": answer.helps}) == words


def test_a_backend_that_crashes_costs_its_own_row(command, monkeypatch, tmp_path):
    """One aborts as a broken library does; the others answer, and the exit code says that not all is well."""
    victim = installed_names()[-1]
    (tmp_path / "crashing.py").write_text(
        "import os\nfrom unifiedamp.workloads import probe\n\n"
        "def make(report_progress):\n    handle = probe.make(report_progress)\n"
        f"    def wrapped(request):\n        if request.get('backend') == {victim!r}: os.abort()\n"
        "        return handle(request)\n    return wrapped\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    # The package's name ``doctor`` is the command.
    monkeypatch.setattr(importlib.import_module("unifiedamp.cli.doctor"), "PROBE", "crashing:make")
    done = command("doctor")
    assert done.code == 1
    lines = [line for line in done.out.splitlines() if line.strip()]
    rows = {line.split()[0]: line for line in reversed(lines)}  # of the first table
    assert "was killed by SIGABRT" in rows[victim]
    assert all(rows[name].rstrip().endswith("works") for name in installed_names() if name != victim)


def installed_names():
    return [name for name, info in ua.available_backends().items() if info.installed]


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    """No framework is found, by the processes that look for them."""
    (tmp_path / "bare.py").write_text(
        "from unifiedamp.config import plugins\nfrom unifiedamp.workloads import probe\n\n"
        "plugins.is_installed = lambda framework: False\nmake = probe.make\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(importlib.import_module("unifiedamp.cli.doctor"), "PROBE", "bare:make")


def test_nothing_installed_is_said_in_plain_words(command, nothing_installed):
    done = command("doctor")
    assert done.code == 1
    assert "No framework answered. Install one: " in done.out
    assert "pip install torch" in done.out
    assert "torch is not installed" in done.out


def test_speeds_are_against_float32():
    found = probe.speeds({"float32": [10.0, 20.0, 10.0], "mixed_bfloat16": [20.0, 40.0, 30.0]})
    assert found["float32"] == {"ms": 100.0}
    assert found["mixed_bfloat16"] == {"ms": pytest.approx(1000 / 30), "value": 2.0, "low": 2.0, "high": 3.0}


MEASURED = {"float32": {"ms": 1.0}}


def at(value, low=None):
    return {"ms": 1.0 / value, "value": value, "low": value if low is None else low, "high": value}


@pytest.mark.parametrize(
    ("speed", "best", "reason"),
    [
        ({}, "mixed_bfloat16", "it says so"),
        ({"float32": {"failed": "no memory"}, "mixed_bfloat16": {"ms": 1.0}}, "mixed_bfloat16", "it says so"),
        (MEASURED | {"mixed_bfloat16": at(0.69)}, "float32", "nothing measured is faster by 5% (mixed_bfloat16 0.69x"),
        (MEASURED | {"mixed_bfloat16": at(1.2, low=0.9)}, "float32", "nothing measured"),
        (MEASURED | {"mixed_bfloat16": at(2.0)}, "mixed_bfloat16", "measured 2.00x the speed of float32; it says so"),
        (MEASURED | {"mixed_bfloat16": at(2.0), "mixed_float16": at(2.05)}, "mixed_bfloat16", "measured 2.00x"),
        (MEASURED | {"mixed_bfloat16": at(0.7), "mixed_float16": at(1.5)}, "mixed_float16", "measured 1.50x"),
        (MEASURED | {"mixed_bfloat16": {"failed": "x"}, "bfloat16": at(3.0)}, "mixed_bfloat16", "it says so"),
        (MEASURED | {"mixed_bfloat16": {"failed": "x"}, "mixed_float16": at(0.5)}, "float32", "mixed_float16 0.50x"),
    ],
)
def test_measured_figures_decide(speed, best, reason):
    found, why = probe.recommended("mixed_bfloat16", "it says so", speed)
    assert found == best
    assert reason in why


def test_measuring_trains_under_every_policy_that_runs(backend, monkeypatch):
    monkeypatch.setattr(probe, "SIZES", {True: (4, 8), False: (4, 8)})
    monkeypatch.setattr(probe, "TURN_SECONDS", 0.0)
    capabilities = ua.available_backends()[backend].capabilities
    reported = []
    with pytest.warns(ua.errors.AmpWarning) if _warns(capabilities) else _nothing():
        found = probe.measure(backend, capabilities, reported.append)
    runs = [name for name, answer in capabilities.policies.items() if answer]
    assert reported == runs
    assert set(found) == set(runs)
    assert all(one.get("ms", 0) > 0 for one in found.values()), found


@pytest.mark.parametrize(
    ("lows", "wanted"),
    [([0.7, 0.9, 1.1, 1.3], 2048), ([1.1] * 4, 512), ([1.1, 0.9, 1.2, 1.3], 2048), ([1.3, 1.2, 1.1, 1.0], None)],
)
def test_float8_gains_from_a_measured_width_on(lows, wanted):
    """One that is slower leaves out all that are smaller."""
    speeds = dict(zip(float8_width.WIDTHS, lows, strict=True))

    def make(policy, _rows, width):
        return lambda: speeds[width] if policy == "mixed_float8" else 1.0

    found = float8_width.measure(make, 3)
    assert found["from"] == wanted
    assert found["widths"]["1024"] == {"value": lows[1], "low": lows[1], "high": lows[1]}
    said = float8_width.advice(found)
    assert f"512: {lows[0]:.2f}x" in said
    assert ("at no measured width" in said) if wanted is None else (f"from width {wanted} of layers on" in said)


@pytest.mark.parametrize("fails_by_itself", [True, False])
def test_a_width_that_cannot_be_measured_is_reported(backend, monkeypatch, fails_by_itself):
    """As where float8 has no kernels; the rest of the report stays."""
    if not fails_by_itself or probe.multiplies_float8(backend):

        def no_kernel(*_):
            raise RuntimeError("no float8 kernel")

        monkeypatch.setattr(probe, "_training", no_kernel)
    found = probe.float8_widths(backend, lambda _: None)
    assert found["failed"].startswith("width 512: ")
    assert float8_width.advice(found).startswith("float8 by width was not measured: width 512")


def _warns(capabilities):
    return any(answer.helps is False for answer in capabilities.policies.values())


def _nothing():
    import contextlib

    return contextlib.nullcontext()


# -- the machine -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "dtypes"),
    [
        ((6, 1), ()),
        ((7, 0), ("float16",)),
        ((7, 5), ("float16",)),
        ((8, 6), ("float16", "bfloat16", "tf32", "float64")),
        ((9, 0), ("float16", "bfloat16", "tf32", "float64", "float8")),
    ],
)
def test_tensor_cores_by_compute_capability(capability, dtypes):
    assert machine.tensor_core_dtypes(capability) == dtypes


class Driver:
    """The part of the CUDA driver that is called, as it would answer with one H200 in the machine."""

    def cuInit(self, flags):
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device, index):
        return 0

    def cuDeviceGetName(self, name, size, device):
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceTotalMem_v2(self, memory, device):
        memory._obj.value = 140 * 2**30
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = {75: 9, 76: 0}[attribute]
        return 0


def test_a_gpu_as_the_driver_tells_it(command, monkeypatch, nothing_installed):
    (gpu,) = machine.gpus(Driver())
    assert gpu == machine.Gpu("NVIDIA H200", (9, 0), 140 * 2**30)
    monkeypatch.setattr("unifiedamp.machine.gpus", lambda: (gpu,))
    assert (
        "GPU: NVIDIA H200, 140 GiB, compute capability 9.0: "
        "Tensor Cores for float16, bfloat16, tf32, float64, float8" in command("doctor").out
    )


def test_no_driver_is_no_gpu(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    assert machine.gpus() == ()


@pytest.mark.parametrize(
    ("flags", "units", "vectors"),
    [
        ("fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile", ("AVX512-BF16", "AMX-BF16", "AMX"), "AVX-512"),
        ("fpu avx2", (), "AVX2"),
        ("fpu avx512f avx512_fp16", ("AVX512-FP16",), "AVX-512"),
    ],
)
def test_units_of_a_processor(monkeypatch, flags, units, vectors):
    text = f"processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: {flags}\nprocessor\t: 1\nmodel name\t: Some CPU\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert machine.cpu() == machine.Cpu("Some CPU", units, vectors)


# -- workers -----------------------------------------------------------------------------------------------------------

WORKER = """
import os, sys
from unifiedamp.errors import ConfigError
from unifiedamp.workloads.workers import OutOfMemory

def make(report_progress):
    def handle(request):
        print("noise on standard output")
        what = request["what"]
        if what == "progress":
            report_progress(1); report_progress(2)
            return {"answer": 3}
        if what == "exit":
            print("last words", file=sys.stderr); sys.stderr.flush(); os._exit(7)
        raise {"refused": ConfigError, "memory": OutOfMemory, "error": ZeroDivisionError}[what]("a reason")
    return handle
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "a_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with Worker("a_worker:make") as made:
        yield made


def test_a_worker_answers_and_reports_progress(worker):
    reported = []
    assert worker.ask({"what": "progress"}, reported.append) == {"answer": 3}
    assert reported == [1, 2]


@pytest.mark.parametrize(("kind", "said"), [("refused", "a reason"), ("memory", "a reason"), ("error", "ZeroDivision")])
def test_a_worker_that_fails_goes_on(worker, kind, said):
    with pytest.raises(WorkerError, match=said) as caught:
        worker.ask({"what": kind})
    assert caught.value.kind == kind
    assert worker.ask({"what": "progress"}) == {"answer": 3}


def test_a_worker_that_is_gone_says_its_last_words(worker):
    with pytest.raises(WorkerError, match="exit code 7: last words") as caught:
        worker.ask({"what": "exit"})
    assert caught.value.kind == "crash"
    with pytest.raises(WorkerError, match="exit code 7"):
        worker.ask({"what": "progress"})
