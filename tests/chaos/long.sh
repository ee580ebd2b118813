#!/usr/bin/env bash
# long.sh [DURATION [--store STORE] [--transport NAMES]]: the long runs that kill processes.
#
# With a DURATION: plays histories of workers and a nemesis for that time with each store, and adds the results to
# tests/chaos/RESULTS.md (see history/history.py). Without one: kills 200 servers under load for each store and
# durability that must survive it, and 200 masters of a Redis Cluster; forks a process with a working client 10,000
# times; and cancels calls at random moments for half an hour, with the client under AddressSanitizer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PYTHONPATH=$PWD/client/python/src PYTHONDONTWRITEBYTECODE=1
export ROUTING_REPLAY_LIBRARY_DIR=$PWD/build/release/lib ROUTING_REPLAY_SERVER=$PWD/build/release/bin/routing-replay-server
cmake --preset release >/dev/null
if [ $# -gt 0 ]; then
  cmake --build build/release -j "$(nproc)" --target routing_replay_library routing-replay-server
  exec /usr/bin/python3 tests/chaos/history/history.py "$@" --keep build
fi
cmake --build build/release -j "$(nproc)" --target durable_store_test redis_crash_test \
  routing_replay_library routing-replay-server
RR_CRASH_ROUNDS=200 build/release/tests/chaos/durable_store_test
RR_CRASH_ROUNDS=200 build/release/tests/chaos/redis_crash_test
# With the library of a wheel, if deploy/build_wheels.sh has built one.
bundled=$PWD/build/release/lib/bundled
[ ! -e "$bundled" ] || cmake --build build/release -j "$(nproc)" --target bundled
ROUTING_REPLAY_LIBRARY_DIR=$([ -e "$bundled" ] && echo "$bundled" || echo "$ROUTING_REPLAY_LIBRARY_DIR") \
  /usr/bin/python3 tests/chaos/forks.py
cmake --preset asan >/dev/null
cmake --build build/asan -j "$(nproc)" --target routing_replay_library
# Python itself is not instrumented, and does not free all its memory at exit.
LD_PRELOAD=$(g++ -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 ROUTING_REPLAY_LIBRARY_DIR=$PWD/build/asan/lib \
  /usr/bin/python3 tests/chaos/cancellations.py 1800
