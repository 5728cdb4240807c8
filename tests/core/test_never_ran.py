"""scripts/never_ran.py: a test that each environment skips for want of a package is an error."""

import runpy
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "scripts" / "never_ran.py"
MISSING = "<skipped message=\"could not import 'mypy': No module named 'mypy'\">here</skipped>"
WHOLE = "<skipped message=\"collection skipped\">('a.py', 3, \"Skipped: could not import 'mypy'\")</skipped>"
NO_GPU = '<skipped message="needs a GPU">here</skipped>'


def case(body, module="tests.a", name="test"):
    return f'<testcase classname="{module}" name="{name}">{body}</testcase>'


MODULE = case(WHOLE, module="", name="tests.a")


@pytest.mark.parametrize(
    ("reports", "found"),
    [
        ([[case(MISSING)], [case(MISSING)]], ["tests.a::test"]),
        ([[case(MISSING)], [case("")]], []),
        ([[case("")], [case(MISSING)]], []),
        ([[case(MISSING)], [case("", name="other")]], ["tests.a::test"]),
        ([[case(MISSING)], [case(NO_GPU)]], []),
        ([[MODULE], [MODULE]], ["tests.a"]),
        ([[MODULE], [case("")]], []),
        ([[MODULE], [case("", module="tests.b")]], ["tests.a"]),
    ],
)
def test_never_ran(tmp_path, reports, found):
    for place, cases in enumerate(reports):
        (tmp_path / f"{place}.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    never_ran = runpy.run_path(str(FILE))["never_ran"]
    assert list(never_ran(sorted(tmp_path.glob("*.xml")))) == found
