#!/usr/bin/env bash
# Runs miles itself on the CPU, with the Megatron of its package: its command line, its rollout and its trainer's step
# through the service, with the README's lines, and its own R3 compared with ours. The tests are those of slime
# (tests/peers/slime), from which miles is derived.
#
#   tests/peers/miles.sh [--build DIR]
#
#   --build DIR  a release build (default: build/release, built if needed)
#
# Six minutes. The environment build/peers/miles-0.0.2 is created once, and takes 0.1 GB in addition to those of slime.
# Exit status 77 if packages cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

version=0.0.2
build=
peer_options --build "$@"

# alone PYTHON: installs only miles' package, which includes Megatron, and what that imports; the rest is slime's.
alone() {
  "$1" -m pip install --quiet --disable-pip-version-check --no-deps "miles-rl==$version" packaging six
}

if ! parser=$(peer_parser) || ! python=$(MADE_BY=alone peer_environment miles-$version torch,slime); then
  echo "skipped: the packages for miles cannot be installed"
  exit 77
fi
build=$(peer_build "$build" routing_replay_library routing-replay-server)

peer_paths "$build"
export PEER_FRAMEWORK=miles
PYTHONPATH+=:$PWD/tests/peers/megatron:$PWD/tests/peers/slime:$PWD/tests/peers/miles
status=0
echo "== miles: contract"
PYTHONPATH+=:$(peer_site "$python") "$parser" tests/peers/slime/contract_test.py || status=1
for test in identity differential step; do
  echo "== miles: $test"
  "$python" tests/peers/slime/${test}_test.py || status=1
done
[ $status -ne 0 ] || "$python" tests/peers/common/support.py miles $version \
  "with its package's Megatron: command line, rollout and trainer over Ray, its R3 compared with ours" \
  "random answers instead of an engine's, of sglang only the options, as a dataclass, stand-ins for \
torch_memory_saver, wandb and mooncake, a name in its Megatron that is missing without Transformer Engine, a small model \
instead of a checkpoint's, attention and norms as for Megatron-Core, CPU instead of CUDA"
exit $status
