#!/usr/bin/env bash
# Log-probabilities of a trainer beside those of vLLM, live, replayed, and replayed one row late: a table, what the
# trainer says of the last, and the README's picture.
#
#   tests/bench/pictures/mismatch.sh [--build DIR] [--prompts N] [--tokens N] [--noise S] [--json FILE] [--picture FILE]
#
#   --build DIR     a built release tree (default: build/release, built where needed)
#   --prompts N     answers (default: 16)
#   --tokens N      of each answer (default: 96)
#   --noise S       of the trainer's routers, over the size of their weights (default: 0.02)
#   --json FILE     all differences
#   --picture FILE  an SVG
#
# vLLM, torch and transformers are those of the environment of vLLM's tests (tests/peers/vllm.sh), which is made once.
# Some minutes on two cores. Exit status 77: no packages are to be had.
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

python=$(peer_vllm) || { echo "skipped: no packages for vLLM"; exit 77; }
build=$(peer_build "$build" routing_replay_library routing-replay-server)
peer_paths "$build"
PYTHONPATH+=:$PWD/tests/bench/pictures
export TRITON_INTERPRET=1 VLLM_LOGGING_LEVEL=WARNING VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1
exec "$python" tests/bench/pictures/mismatch.py "${rest[@]}"
