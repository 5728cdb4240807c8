#!/usr/bin/env bash
# Sets up one framework and trains a small image classifier with it, on data that comes with scikit-learn:
#   bash scripts/try.sh [torch|tensorflow|mxnet] [options of `unifiedamp train`]
# Needs Python 3.11 with pip (PYTHON names another one). Installs into .venv/try-<framework>; the results are in
# runs/digits_conv-<framework>.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*"; }
stop() {
  printf '%s\n' "$1" >&2
  exit 2
}

framework=${1:-torch}
config=examples/configs/digits_conv_float16.toml
case "$framework" in
  torch)
    packages=(--group torch -e ".[examples]")
    size="0.3 GB to download, 3 GB where the package index has PyTorch with CUDA only"
    ;;
  mxnet)
    packages=(--group mxnet -e ".[examples]")
    size="0.1 GB to download"
    config=examples/configs/digits_conv_scaled.toml
    ;;
  tensorflow)
    packages=(-e ".[tensorflow,examples]")
    size="0.7 GB to download"
    # Where no GPU is, the smaller build does.
    if [ "$(uname -sm)" = "Linux x86_64" ] && ! command -v nvidia-smi >/dev/null; then
      packages=(--group tensorflow -e ".[examples]")
      size="0.4 GB to download"
    fi
    ;;
  *) stop "unknown framework '$framework': torch, tensorflow or mxnet" ;;
esac
python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || stop "there is no $python: install Python 3.11, or name another: PYTHON=python3.12 bash scripts/try.sh"
venv=.venv/try-$framework
tools=.venv/uv-tool
out=runs/digits_conv-$framework
if [ -e "$out/checkpoint.npz" ] && [[ " ${*:2} " != *" --resume "* && " ${*:2} " != *" --out "* ]]; then
  stop "$out holds the results of a run: look at $out/curves.png, or delete $out to train again"
fi
log=$(mktemp)
job=
finish() {
  [ -z "$job" ] || { kill "$job" && wait "$job"; } 2>/dev/null || true  # a training saves its checkpoint first
  rm -f "$log"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# follow WHAT COMMAND...: runs a command and shows its lines as they come; after five seconds without one, says how long
# it has run. A command that fails is shown whole; its exit code is returned.
follow() {
  local what=$1 begin=$SECONDS last=$SECONDS shown=0 lines status=0
  shift
  : >"$log"
  "$@" >"$log" 2>&1 &
  job=$!
  while kill -0 "$job" 2>/dev/null; do
    sleep 0.3
    lines=$(wc -l <"$log")
    if [ "$lines" -gt "$shown" ]; then
      sed -n "$((shown + 1)),${lines}p" "$log" | tidy
      shown=$lines last=$SECONDS
    elif [ $((SECONDS - last)) -ge 5 ]; then
      say "      … $what, $((SECONDS - begin)) s"
      last=$SECONDS
    fi
  done
  wait "$job" || status=$?
  job=
  if [ "$status" != 0 ]; then
    say "$what: failed (exit code $status)" >&2
    cat "$log" >&2
    return "$status"
  fi
  tail -n "+$((shown + 1))" "$log" | tidy
}

# Of what installers print: what they download, build and install, not each name.
tidy() {
  grep -vE '^( [-+~] |Collecting |  Using cached |Requirement already|Obtaining |Using Python |Looking in |WARNING: Location )' | sed 's/^ */      /' || true
}

install_uv() {
  "$python" -m venv "$tools" && "$tools/bin/python" -m pip install --quiet uv
}

say "[1/4] Tools: uv, which makes Python environments"
uv=$(command -v uv || echo "$tools/bin/uv")
if [ -x "$uv" ] || follow "installing uv into $tools" install_uv; then
  while IFS= read -r line; do export "${line?}"; done < <("$python" scripts/uv_settings.py)
  make=("$uv" venv --quiet --allow-existing --python "$python" "$venv")
  install=("$uv" pip install --python "$venv/bin/python" "${packages[@]}")
else
  say "      uv cannot be had here; pip installs instead, more slowly"
  make=("$python" -m venv "$venv")
  install=("$venv/bin/python" -m pip install --progress-bar off "${packages[@]}")
fi

say "[2/4] Environment $venv: installing $framework, unifiedamp and scikit-learn ($size, less what is cached)"
[ -x "$venv/bin/python" ] || follow "making the environment" "${make[@]}"
[ "${install[0]}" != "$venv/bin/python" ] || follow "updating pip" "$venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1"
follow "installing" "${install[@]}"
say "      $(du -sh "$venv" | cut -f 1) in $venv"

say "[3/4] Training: 8x8 digits, some epochs. The loss scale starts too high: steps are skipped until it fits"
say "      importing $framework and compiling the training step come first"
follow "training" env PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore COLUMNS=100 \
  "$venv/bin/unifiedamp" train "$config" --backend "$framework" --out "$out" "${@:2}"

say "[4/4] Done. Loss, accuracy and loss scale over the steps: $out/curves.png"
say
say "Next, with a file of your own:"
say "  $venv/bin/unifiedamp init my_model.py --backend $framework"
say "  $venv/bin/unifiedamp train my_model.py"
say "  $venv/bin/unifiedamp compare my_model.py --policies float32,mixed_bfloat16"
