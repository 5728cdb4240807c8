"""Fails if a test ran in no environment because what it needs was installed in none.

`bash scripts/test.sh` runs it last, on the reports that pytest wrote in each session: one XML file each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

NOT_INSTALLED = ("could not import", "not installed")


def never_ran(reports: Iterable[Path]) -> dict[str, str]:
    """Return test → reason of those that each report skipped because something is not installed."""
    left_out: dict[str, str] = {}
    others: set[str] = set()
    for path in reports:
        for case in ElementTree.parse(path).iter("testcase"):
            module, name = case.get("classname", ""), case.get("name", "")
            skipped = case.find("skipped")
            reason = "" if skipped is None else f"{skipped.get('message')} {skipped.text}"
            if any(each in reason for each in NOT_INSTALLED):
                left_out[f"{module}::{name}" if module else name] = reason.strip()
            else:
                others |= {module, f"{module}::{name}"}  # a module that was skipped as a whole is named like a test
    return {test: reason for test, reason in left_out.items() if test not in others}


if __name__ == "__main__":
    found = never_ran(sorted(Path(sys.argv[1]).glob("*.xml")))
    for test, reason in sorted(found.items()):
        print(f"{test} ran in no session: {reason}")
    sys.exit(bool(found))
