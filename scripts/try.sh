#!/usr/bin/env bash
# Sets up one framework and trains a small classifier on embedded data with it: `bash scripts/try.sh [torch|tensorflow|mxnet]`.
# Needs Python 3.11 and pip; installs into .venv/try-<framework>. Further arguments go to `unifiedamp train`.
set -euo pipefail
cd "$(dirname "$0")/.."
framework=${1:-torch}
case "$framework" in
  torch | mxnet) packages=(--group "$framework" -e ".[examples]") ;;
  tensorflow)
    # Where no GPU is, the smaller build does.
    packages=(-e ".[tensorflow,examples]")
    if [ "$(uname -sm)" = "Linux x86_64" ] && ! command -v nvidia-smi >/dev/null; then
      packages=(--group tensorflow -e ".[examples]")
    fi
    ;;
  *)
    echo "unknown framework '$framework': torch, tensorflow or mxnet" >&2
    exit 2
    ;;
esac
venv=.venv/try-$framework
[ -x "$venv/bin/python" ] || "${PYTHON:-python3.11}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1"
"$venv/bin/python" -m pip install --quiet "${packages[@]}"
exec "$venv/bin/unifiedamp" train examples/configs/digits_conv.toml --backend "$framework" "${@:2}"
