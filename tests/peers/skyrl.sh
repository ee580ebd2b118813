#!/usr/bin/env bash
# Runs SkyRL itself on the CPU with the README's recipe: compares its R3 with ours, and runs its trainer's `train` from
# the data set to the release of the samples. Takes two minutes.
#
#   tests/peers/skyrl.sh [--build DIR]
#
#   --build DIR      a release build (default: build/release, built if needed)
#
# The environment build/peers/skyrl is created once. This takes two minutes, and 0.8 GB in addition to the environments
# of torch and megatron-core. Exit status 77 if packages cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

build=
peer_options --build "$@"

# alone PYTHON: installs SkyRL without its dependencies, because they include Flash Attention, and vLLM, which needs
# another version of torch.
alone() { "$1" -m pip install --quiet --disable-pip-version-check --no-deps skyrl==0.4.0 skyrl-gym==0.4.0; }

environment() {
  peer_megatron 0.19.2 >/dev/null &&
    MADE_BY=alone peer_environment skyrl torch,megatron-core-0.19.2 ray transformers aiohttp cloudpathlib datasets \
      httpx jaxtyping loguru omegaconf orjson pandas pybase64 pydantic requests torchdata zstandard
}

python=$(environment) || { echo "skipped: the packages for SkyRL cannot be installed"; exit 77; }
build=$(peer_build "$build" routing_replay_library routing-replay-server)
peer_paths "$build"
PYTHONPATH+=:$PWD/tests/peers/megatron
export LOG_LEVEL=ERROR RAY_USAGE_STATS_ENABLED=0 HF_HUB_OFFLINE=1
status=0
for test in differential step; do
  echo "== SkyRL: $test"
  "$python" tests/peers/skyrl/${test}_test.py || status=1
done
exit $status
