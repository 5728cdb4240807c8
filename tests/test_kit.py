"""How the kit judges: expected failures are strict and never stale, undeclared features are told apart."""

import json
import os
import re
import sys
from pathlib import Path

import forked
import pytest

from unifiedamp.conformance import suite

TESTS = str(Path(__file__).parent)
HARNESS = '''
"""The toy under another name, so that it has expected failures of its own."""
from toy.backend import ToyBackend
from toy.harness import ToyHarness
from toy.training import ToyTraining
from unifiedamp.config import plugins
from unifiedamp.backend import BackendPlugin, Support, hookimpl
import dataclasses, os, sys

class JudgedTraining(ToyTraining):
    def clip_grad_value(self, optimizer, clip_value):
        """Forgotten."""
        if "JUDGED_CRASHES" in os.environ:
            os._exit(1)

class Judged(ToyBackend):
    name = "judged"
    training_class = JudgedTraining
    def declare(self):
        known = super().declare()
        return dataclasses.replace(known, features={**known.features, "accumulation": Support(False, "says the test")})

class JudgedHarness(ToyHarness):
    backend = "judged"

harness = JudgedHarness()

@hookimpl
def unifiedamp_backend():
    return BackendPlugin("judged", "numpy", ("numpy",), "pip install numpy", lambda: Judged, "judged")

plugins.register("judged", sys.modules[__name__])
'''
BROKEN = "test_rules.py::test_finiteness_is_decided_before_clipping[judged-eager]"
WORKING = "test_rules.py::test_hysteresis[judged-eager]"
SAMPLED = """
import pytest

tried = []
six = pytest.mark.parametrize("place", range(6))
undeclared = pytest.mark.needs("accumulation")

@six
def test_sampled_third(harness, place):
    tried.append(place)
    if len(tried) < 3:
        pytest.skip("not this one")

@six
def test_sampled_fails(harness, place):
    assert not place + 1

@pytest.mark.parametrize("place", [pytest.param(0, marks=undeclared), pytest.param(1, marks=undeclared), 2])
def test_sampled_declared(harness, place):
    pass

@undeclared
@six
def test_sampled_undeclared(harness, place):
    assert not place + 1

@six
def test_sampled_none(harness, place):
    pytest.skip("none of them")
"""


@pytest.fixture
def judge(tmp_path):
    (tmp_path / "judged.py").write_text(HARNESS)

    def run(*expected, only="test_finiteness or test_hysteresis[judged", reason="known", options=(), **variables):
        entries = [f'[[expected]]\ntest = "{test}"\nreason = "{reason}"\n' for test in expected]
        (tmp_path / "expected_failures.toml").write_text("\n".join(entries))
        report = tmp_path / "report.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "judged", "-p", "no:cacheprovider", "--amp-json", report]
        command += ["--amp-backend", "judged", "--amp-trajectories", "5", "--pyargs", "unifiedamp.conformance.suite"]
        command += [*(["-k", only] if only else []), *options]
        path = os.pathsep.join([str(tmp_path), TESTS, *sys.path])
        environment = {**os.environ, "PYTHONPATH": path, **variables}
        done = forked.run(list(map(str, command)), env=environment, cwd=tmp_path, timeout=120)
        judged = json.loads(report.read_text())["backends"] if report.exists() else {}
        return done, judged.get("judged", {}).get("counts")

    return run


def test_an_expected_failure_is_counted_and_passes(judge):
    done, counts = judge(BROKEN)
    assert done.returncode == 0, done.stdout
    assert (counts["passed"], counts["expected failures"], counts["failed"]) == (1, 1, 0)


def test_an_expected_failure_that_passes_is_a_failure(judge):
    done, counts = judge(BROKEN, WORKING)
    assert done.returncode == 1
    assert counts["failed"] == 1
    assert "XPASS(strict)" in done.stdout


def test_a_failure_that_nobody_expects_is_a_failure(judge):
    done, counts = judge()
    assert done.returncode == 1
    assert counts["failed"] == 1


def test_a_test_that_ends_its_process_is_a_failure(judge):
    done, counts = judge(options=("-n", "1"), JUDGED_CRASHES="1")
    assert done.returncode == 1
    assert (counts["passed"], counts["failed"]) == (1, 1)


def test_a_stale_expectation_is_an_error(judge):
    done, _ = judge("test_rules.py::test_that_was_renamed[judged-eager]", only="")
    assert done.returncode == 4
    assert "names no test; take it out" in done.stderr


@pytest.mark.parametrize("option", ["--amp-form", "--amp-sample"])
def test_what_a_narrower_run_leaves_out_is_not_stale(judge, option):
    """The expectation is of the other form."""
    done, _ = judge(BROKEN.replace("eager", "compiled"), only="", options=(option, "eager", "--collect-only"))
    assert done.returncode == 0, done.stderr


def test_one_case_of_each_test_runs_in_a_form_that_is_sampled(judge):
    def collected(*options):
        found = judge(only="", options=(*options, "--collect-only"))[0].stdout.splitlines()
        return [line.rpartition("/")[2] for line in found if "[judged-" in line]

    whole, some = collected(), collected("--amp-sample", "eager")
    sampled, kept, fewer = (
        [line for line in lines if "[judged-eager" in line]
        for lines in (whole, some, collected("--amp-sample", "eager=3"))
    )
    names = [line.partition("[")[0] for line in kept]
    assert sorted(names) == sorted({line.partition("[")[0] for line in sampled})
    assert set(fewer) < set(kept) < set(sampled)
    assert len(kept) / 4 < len(fewer) < len(kept) / 2
    assert [line for line in whole if line not in sampled] == [line for line in some if line not in kept]
    every = collected("--amp-sample", "eager=3", "--amp-sample", "any")
    assert [line for line in every if "[judged-eager" in line] == fewer
    others = [line.partition("[")[0] for line in every if line not in fewer]
    assert len(set(others)) > 100
    assert all(others.count(name) <= 2 for name in others)  # once in the other form, once in none


def test_where_the_case_of_a_sample_does_not_run_another_one_does(judge, tmp_path):
    (tmp_path / "test_sampled.py").write_text(SAMPLED)
    options = ("test_sampled.py", "--amp-sample", "any", "-vv", "-n", "1")
    done, _ = judge(only="test_sampled", options=options)
    found = {}
    for outcome, name in re.findall(r"%\] (\w+) test_sampled\.py::test_sampled_(\w+)\[", done.stdout):
        found.setdefault(name, []).append(outcome)
    assert found.pop("declared") in (["PASSED"], ["XPASS", "PASSED"])
    assert found == {
        "third": ["SKIPPED", "SKIPPED", "PASSED"],
        "fails": ["FAILED"],
        "undeclared": ["XFAIL"],
        "none": ["SKIPPED"] * 6,
    }


@pytest.mark.parametrize("share", ["eager=0", "eager=x", "eager=-1"])
def test_a_share_is_a_whole_number(judge, share):
    done, _ = judge(options=("--amp-sample", share))
    assert done.returncode == 4
    assert f"--amp-sample {share}: give FORM, or FORM=N" in done.stderr


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["here", "worker"])
def test_a_form_that_no_backend_has_is_refused(judge, workers):
    done, _ = judge(options=(*workers, "--amp-form", "eagre"))
    assert done.returncode == 4
    assert "--amp-form eagre: the forms of judged are eager" in done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_an_expectation_needs_a_reason(judge):
    done, _ = judge(BROKEN, reason="")
    assert done.returncode == 4
    assert "needs a test and a reason" in done.stderr


def test_what_works_undeclared_is_reported(judge):
    """The toy accumulates; the judged backend says it does not."""
    done, counts = judge(only="test_a_bad_micro_batch or test_accumulated")
    assert done.returncode == 0, done.stdout
    assert counts["undeclared but works"] == 3
    assert counts["undeclared"] == counts["failed"] == 0


def test_no_fixture_of_the_suite_acts_by_itself():
    """``from unifiedamp.conformance.suite import *`` would apply it to every test of a stranger's module."""
    for path in Path(suite.__file__).parent.glob("*.py"):
        assert "autouse" not in path.read_text(encoding="utf-8"), path.name
