#!/usr/bin/env bash
# Runs verl's own training on the CPU with the README's three lines: its R3 compared with ours, and `PPOTrainer.fit`
# with agent loops over Ray, TransferQueue, workers and Megatron engines, with one rank and with two; and routes that
# stay in TransferQueue. About five minutes.
#
#   tests/peers/verl.sh [--build DIR] [--wheels DIR] [--share ROUNDS]
#
#   --build DIR      a release build (default: build/release, built if needed)
#   --wheels DIR     uses only the packages of these wheels, as a user has them, and nothing of the tree
#   --share ROUNDS   runs no tests, but measures how much of verl's step is spent on routes (verl/share.py)
#
# The environment build/peers/verl is created once, in two to six minutes, and takes 0.8 GB in addition to those of
# torch and megatron-core. Exit status 77 if packages cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

build='' wheels='' share=''
peer_options '--build --wheels --share' "$@"

# on_torch PYTHON: installs these packages without their dependencies, because they would bring another torch.
on_torch() {
  "$1" -m pip install --quiet --disable-pip-version-check --no-deps \
    verl==0.9.1 TransferQueue==0.1.11 tensordict==0.10.0 pyvers orjson accelerate peft torchdata
}

environment() {
  peer_megatron 0.19.2 >/dev/null &&
    MADE_BY=on_torch peer_environment verl torch,megatron-core-0.19.2 transformers==5.9.0 'ray>=2.41' aiohttp cachetools \
      cloudpickle codetiming datasets fastapi hydra-core importlib_metadata msgspec pillow prometheus_client psutil \
      pylatexenc pyzmq uvicorn
}

python=$(environment) || { echo "skipped: the packages for verl cannot be installed"; exit 77; }
[ -n "$wheels" ] || build=$(peer_build "$build" routing_replay_library routing-replay-server)
peer_paths "$build" "$wheels"
export TORCHDYNAMO_DISABLE=1 # Code that verl compiles for a GPU runs uncompiled.
export VERL_LOGGING_LEVEL=ERROR TQ_LOGGING_LEVEL=ERROR RAY_USAGE_STATS_ENABLED=0 HF_HUB_OFFLINE=1
HF_HOME=$(mktemp -d) # Cache of the data sets that verl reads.
export HF_HOME
trap 'rm -rf "$HF_HOME"' EXIT
if [ -n "$share" ]; then
  "$python" tests/peers/verl/share.py "$share"
  exit
fi
status=0
for test in contract columns differential step replicas; do
  echo "== $test"
  "$python" tests/peers/verl/${test}_test.py || status=1
done
exit $status
