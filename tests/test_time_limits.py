"""Every test that starts a process gives it a time limit: a process that hangs fails one test, not the run."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent
STARTS = {"subprocess.run", "subprocess.check_output", "subprocess.check_call", "subprocess.call"}
"""Calls that take ``timeout=``."""
WAITS = {"communicate", "wait", "join"}
"""Methods of processes that take a limit as their argument."""


def calls_without_limit(code):
    """Yield each call that waits for a process as long as it takes."""
    for call in ast.walk(ast.parse(code)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        limited = any(keyword.arg == "timeout" for keyword in call.keywords)
        if ast.unparse(call.func) in STARTS and not limited:
            yield ast.unparse(call)
        if call.func.attr in WAITS and not limited and not call.args:
            yield ast.unparse(call)


def test_each_process_has_a_time_limit():
    files = [path for path in TESTS.rglob("*.py") if not path.is_relative_to(TESTS / "listings")]
    found = {str(path.relative_to(TESTS)): [*calls_without_limit(path.read_text(encoding="utf-8"))] for path in files}
    assert {path: calls for path, calls in found.items() if calls} == {}


def test_such_calls_are_found():
    code = "subprocess.run(x); subprocess.run(x, timeout=3); p.wait(); p.wait(3); ', '.join(x); thread.join()"
    assert [*calls_without_limit(code)] == ["subprocess.run(x)", "p.wait()", "thread.join()"]
