#!/usr/bin/env bash
# vLLM itself on the CPU: its engines and its server through adapters, trajectories, attachments, the plug-in and the
# recipes, each stored row beside what the engine gave and beside what transformers choose in fp32 with the same weights.
#
#   tests/peers/vllm.sh [--build DIR]
#
#   --build DIR      a built release tree (default: build/release, built where needed)
#
# The environment build/peers/vllm is made once, in three to thirteen minutes, and takes 6.3 GB. The tests take five
# minutes. Exit status 77: no packages are to be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

build=
peer_options --build "$@"

python=$(peer_vllm) || { echo "skipped: no packages for vLLM"; exit 77; }
build=$(peer_build "$build" routing_replay_library routing-replay-server)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PEER_MODELS=$work/models PEER_KEPT=$work/kept
export PYTHONPATH=$PWD/client/python/src:$PWD/tests/peers PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
export ROUTING_REPLAY_LIBRARY_DIR=$build/lib ROUTING_REPLAY_SERVER=$build/bin/routing-replay-server
export TRITON_INTERPRET=1 VLLM_LOGGING_LEVEL=WARNING VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1
"$python" -m common.models "$PEER_MODELS"
status=0
for test in offline scheduler families async plugin http; do
  echo "== $test"
  "$python" tests/peers/vllm/${test}_test.py || status=1
done
echo "== beside transformers"
"$python" -m common.chosen "$PEER_KEPT" "$PEER_MODELS" || status=1
[ $status -ne 0 ] || "$python" -m common.support vLLM $peer_vllm_version \
  'LLM, AsyncLLM and its server on the CPU, models of five families' 'a Triton backend named cpu beside it'
exit $status
