#!/usr/bin/env bash
# Memory and time of a training node of GLM-4.7-Flash, slime's way beside ours: prints a table and draws the README's
# picture.
#
#   tests/bench/pictures/node.sh [--build DIR] [--scale S] [--rounds N] [--json FILE] [--picture FILE]
#
#   --build DIR     release build (default: build/release, built if needed)
#   --scale S       share of the step's 1,536 samples (default: 0.01, which takes 8 GB of memory and some minutes; 1 takes
#                   500 GB)
#   --rounds N      measured rounds at this scale, and at half of it, each after a warm-up (default: 5)
#   --json FILE     writes the results of all rounds
#   --picture FILE  writes the picture, an SVG
#
# Ray and torch come from the environment of slime's tests (tests/peers/slime.sh), which is created once. Exit status 77
# if packages cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
. tests/peers/environment.sh

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/bench/pictures/node.sh; }

build='' rest=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --build) build=$2; shift 2 ;;
    *) rest+=("$1"); shift ;;
  esac
done

python=$(peer_slime) || { echo "skipped: the packages for slime cannot be installed"; exit 77; }
build=$(peer_build "$build" routing_replay_library routing-replay-server)
peer_paths "$build"
PYTHONPATH+=:$PWD/tests/bench/pictures
# Keeps Ray from killing its processes because of memory that other processes use.
export RAY_memory_monitor_refresh_ms=0 RAY_USAGE_STATS_ENABLED=0
exec "$python" tests/bench/pictures/node.py "${rest[@]}"
