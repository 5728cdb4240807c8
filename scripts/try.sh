#!/usr/bin/env bash
# Sets up one framework and trains the recipe on embedded data with it: `bash scripts/try.sh [torch|tensorflow|mxnet]`.
# Needs Python 3.11 and pip; installs into .venv/try-<framework>. Further arguments go to `unifiedamp train`.
set -euo pipefail
cd "$(dirname "$0")/.."
framework=${1:-torch}
extra=$framework
case "$framework" in
  torch | mxnet) ;;
  tensorflow)
    # Where no GPU is, the smaller build does.
    if [ "$(uname -sm)" = "Linux x86_64" ] && ! command -v nvidia-smi >/dev/null; then extra=tensorflow-cpu; fi
    ;;
  *)
    echo "unknown framework '$framework': torch, tensorflow or mxnet" >&2
    exit 2
    ;;
esac
venv=.venv/try-$framework
[ -x "$venv/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet -c ci/main.txt -e ".[$extra,examples]"
exec "$venv/bin/unifiedamp" train --config examples/configs/digits_conv.toml --backend "$framework" "${@:2}"
