#!/usr/bin/env bash
# Compares a trainer's log-probabilities with vLLM's: live, replayed, and replayed one row late. Prints a table and the
# trainer's report on the last, and draws the README's picture.
#
#   tests/bench/pictures/mismatch.sh [--build DIR] [--prompts N] [--tokens N] [--noise S] [--json FILE] [--picture FILE]
#
#   --build DIR     release build (default: build/release, built if needed)
#   --prompts N     number of answers (default: 16)
#   --tokens N      tokens per answer (default: 96)
#   --noise S       noise of the trainer's routers, relative to the size of their weights (default: 0.02)
#   --json FILE     writes all differences
#   --picture FILE  writes the picture, an SVG
#
# vLLM, torch and transformers come from the environment of vLLM's tests (tests/peers/vllm.sh), which is created once.
# Takes some minutes on two cores. Exit status 77 if packages cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
. tests/peers/environment.sh

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/bench/pictures/mismatch.sh; }

build='' rest=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --build) build=$2; shift 2 ;;
    *) rest+=("$1"); shift ;;
  esac
done

python=$(peer_vllm) || { echo "skipped: the packages for vLLM cannot be installed"; exit 77; }
build=$(peer_build "$build" routing_replay_library routing-replay-server)
peer_paths "$build"
PYTHONPATH+=:$PWD/tests/bench/pictures
export TRITON_INTERPRET=1 VLLM_LOGGING_LEVEL=WARNING VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1
exec "$python" tests/bench/pictures/mismatch.py "${rest[@]}"
