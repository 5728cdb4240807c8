#!/usr/bin/env bash
# Sets up and runs all tests: lint, types, import contracts, the wheel, and the suite in three environments, each in a
# virtual environment of its own under .venv/. Needs Python 3.11 and pip. Arguments go to nox: `-l`, `-s tests`, …
set -euo pipefail
cd "$(dirname "$0")/.."
tools=.venv/nox-tool
if [ ! -x "$tools/bin/nox" ]; then
  "${PYTHON:-python3.11}" -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet nox
fi
exec "$tools/bin/nox" "$@"
