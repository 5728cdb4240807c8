#!/usr/bin/env bash
# Sets up and runs all tests: lint, types, import contracts, the wheel, and the suite in seven environments, each in a
# separate virtual environment under .venv/. Needs Python 3.11 and pip.
#   bash scripts/test.sh            what CI runs
#   bash scripts/test.sh quick      lint, types, core, the toy backend and torch's eager form
#   bash scripts/test.sh full       as CI, with 10,000 inputs per fuzz test, random kills, and 100,000-step soaks
# Other arguments go to nox: `-l`, `-s tests`, …
set -euo pipefail
cd "$(dirname "$0")/.."
tools=.venv/nox-tool
if [ ! -x "$tools/bin/nox" ]; then
  "${PYTHON:-python3.11}" -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet "nox[uv]"
fi
case "${1:-}" in
  quick) set -- -s quick -- "${@:2}" ;;
  full)
    export UNIFIEDAMP_TEST_EFFORT=full
    set -- "${@:2}"
    ;;
esac
[ $# -gt 0 ] || set -- -s everything
exec "$tools/bin/nox" "$@"
