#!/usr/bin/env bash
# miles itself on the CPU: its rollout and its trainer's step through the service, by the README's lines, and its own R3
# beside ours. The tests are those of slime (tests/peers/slime), which it comes from.
#
#   tests/peers/miles.sh [--build DIR]
#
#   --build DIR  a built release tree (default: build/release, built where needed)
#
# Two minutes. The environment build/peers/miles is made once, and takes 22 MB beside those of torch, megatron-core and
# slime. Exit status 77: no packages are to be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

version=0.0.2
build=
peer_options --build "$@"

# alone PYTHON: miles without the parts of Megatron and SGLang that its package puts beside it.
alone() {
  local site
  site=$(peer_site "$1")
  "$1" -m pip install --quiet --disable-pip-version-check --no-deps "miles-rl==$version" &&
    rm -r "${site:?}/megatron" "${site:?}/sglang"
}

if ! peer_slime >/dev/null || ! python=$(MADE_BY=alone peer_environment miles torch,megatron-core-0.19.2,slime); then
  echo "skipped: no packages for miles"
  exit 77
fi
build=$(peer_build "$build" routing_replay_library routing-replay-server)

peer_paths "$build"
export PEER_FRAMEWORK=miles
PYTHONPATH+=:$PWD/tests/peers/megatron:$PWD/tests/peers/slime:$PWD/tests/peers/miles
status=0
for test in contract differential step; do
  echo "== miles: $test"
  "$python" tests/peers/slime/${test}_test.py || status=1
done
[ $status -ne 0 ] || "$python" tests/peers/common/support.py miles $version \
  'rollout and trainer over Ray, its R3 beside ours' \
  "random answers for an engine's, stand-ins for sglang, torch_memory_saver and mooncake, Megatron-Core 0.19.2 for its \
Megatron, whose patch goes through RouterReplay, a small model in the place of a checkpoint's, attention and norms as \
beside Megatron-Core, CPU for CUDA"
exit $status
