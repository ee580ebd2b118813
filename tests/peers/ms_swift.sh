#!/usr/bin/env bash
# Runs ms-swift's own MegatronGRPOTrainer on the CPU with the README's recipe: its R3 compared with ours, and its
# training step from rollout to optimizer. One to three minutes.
#
#   tests/peers/ms_swift.sh [--build DIR]
#
#   --build DIR  a release build (default: build/release, built if needed)
#
# The environment build/peers/ms-swift is created once, in a minute, and takes 0.6 GB in addition to those of torch and
# megatron-core. Exit status 77 if packages cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

version=4.6.0

build=
peer_options --build "$@"

# own PYTHON: installs these packages without their dependencies, which include more than the tests import.
own() {
  "$1" -m pip install --quiet --disable-pip-version-check --no-deps \
    "ms-swift==$version" mcore-bridge==1.6.5 trl==0.29.1
}

environment() {
  peer_megatron 0.19.2 >/dev/null &&
    MADE_BY=own peer_environment ms-swift torch,megatron-core-0.19.2 transformers==5.19.0 'datasets>=4,<4.8.5' \
      accelerate 'peft<0.21' dacite modelscope json-repair einops pillow addict msgspec
}

python=$(environment) || { echo "skipped: the packages for ms-swift cannot be installed"; exit 77; }
build=$(peer_build "$build" routing_replay_library routing-replay-server)
peer_paths "$build"
PYTHONPATH+=:$PWD/tests/peers/megatron:$PWD/tests/peers/ms_swift
export TORCHDYNAMO_DISABLE=1 # Code that it compiles for a GPU runs uncompiled.
export LOG_LEVEL=ERROR HF_HUB_OFFLINE=1
status=0
for test in differential step; do
  echo "== ms-swift: $test"
  "$python" tests/peers/ms_swift/${test}_test.py || status=1
done
[ $status -ne 0 ] || "$python" tests/peers/common/support.py ms-swift $version \
  'MegatronGRPOTrainer from rollout to optimizer, its R3 compared with ours' \
  "random answers instead of an engine's, no weights sent to an engine, stand-ins for Transformer Engine, a small model \
instead of a checkpoint's, attention and norms as for Megatron-Core, an optimizer that is not distributed, CPU instead of CUDA"
exit $status
