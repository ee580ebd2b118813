#!/usr/bin/env bash
# Runs SGLang itself on the CPU: its engine and its server, with adapters, trajectories, attachments, the plug-in and
# the recipe. Each stored row is compared with the engine's, and with the choice of transformers in fp32 with the same
# weights.
#
#   tests/peers/sglang.sh [--build DIR]
#
#   --build DIR      a release build (default: build/release, built if needed)
#
# The environment build/peers/sglang is created once, in two minutes, and takes 0.5 GB in addition to that of vllm.sh,
# whose torch, transformers and Triton it uses. The tests take eight minutes. Exit status 77 if packages cannot be
# installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

build=
peer_options --build "$@"

python=$(peer_sglang) || { echo "skipped: the packages for SGLang cannot be installed"; exit 77; }
build=$(peer_build "$build" routing_replay_library routing-replay-server)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PEER_MODELS=$work/models PEER_KEPT=$work/kept
export PYTHONPATH=$PWD/client/python/src:$PWD/tests/peers PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
export ROUTING_REPLAY_LIBRARY_DIR=$build/lib ROUTING_REPLAY_SERVER=$build/bin/routing-replay-server
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
"$python" -m common.models "$PEER_MODELS"
status=0
for test in engine weights guesses cache families http; do
  echo "== $test"
  "$python" tests/peers/sglang/${test}_test.py || status=1
done
echo "== beside transformers"
"$python" -m common.chosen "$PEER_KEPT" "$PEER_MODELS" || status=1
[ $status -ne 0 ] || "$python" -m common.support SGLang $peer_sglang_version \
  'Engine and its server on the CPU, models of five families' \
  'one line about pinned memory; torch 2.13 instead of 2.14; other kernels for n-gram speculation and HiCache'
exit $status
