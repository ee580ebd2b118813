#!/usr/bin/env bash
# Runs vLLM itself on the CPU: its engines and its server, with adapters, trajectories, attachments, the plug-in and the
# recipes. Each stored row is compared with the engine's, and with the choice of transformers in fp32 with the same
# weights.
#
#   tests/peers/vllm.sh [--build DIR]
#
#   --build DIR      a release build (default: build/release, built if needed)
#
# The environment build/peers/vllm is created once, in three to thirteen minutes, and takes 6.3 GB. The tests take five
# minutes. Exit status 77 if packages cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

build=
peer_options --build "$@"

python=$(peer_vllm) || { echo "skipped: the packages for vLLM cannot be installed"; exit 77; }
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
  'LLM, AsyncLLM and its server on the CPU, models of five families' 'an additional Triton backend named cpu'
exit $status
