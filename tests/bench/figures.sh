#!/usr/bin/env bash
# Measures all figures of README.md and prints the tables in Markdown.
#
#   tests/bench/figures.sh [--out DIR] [--build DIR] [--repetitions N] [--quick] [--readme]
#
#   --out DIR        folder for the results (JSON) and the tables (default: build/figures)
#   --build DIR      release build (default: build/release, built if needed)
#   --repetitions N  measured rounds, after a warm-up (default: 15)
#   --quick          few and small rounds, only to see that it runs
#   --readme         also writes the tables into README.md
#
# As root each benchmark runs in a network namespace of its own, with reno; otherwise on the host's loopback interface,
# with the host's congestion control, which the tables name. Nothing else should run on the machine. If RR_PEERS names
# the folder of the peers' benchmark, peers.sh also measures the hand-off with Python at both ends beside those
# libraries that need no Ray.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/bench/figures.sh; }

out=build/figures build='' repetitions=15 quick=() readme=()
while [ $# -gt 0 ]; do
  case $1 in
    --out | --build | --repetitions)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    --quick) quick=(--quick) ;;
    --readme) readme=(--readme tests/bench/README.md) ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

if [ -z "$build" ]; then
  build=build/release
  cmake --preset release >/dev/null
  cmake --build $build -j "$(nproc)" --target routing-replay-server routing-replay-bench routing_replay_library append_rounds >/dev/null
fi
network=auto
[ "$(id -u)" -ne 0 ] || network=own
mkdir -p "$out"

build=$(realpath "$build")
export PYTHONPATH=$PWD/client/python/src:$PWD/trainer_plugin/python/src PYTHONDONTWRITEBYTECODE=1
export ROUTING_REPLAY_LIBRARY_DIR=$build/lib ROUTING_REPLAY_SERVER=$build/bin/routing-replay-server
python=/usr/bin/python3

# bench RESULT NAME [options]: runs a benchmark and writes RESULT.json.
bench() {
  local result=$1
  shift
  echo "routing-replay-bench $*" >&2
  "$build/bin/routing-replay-bench" "$@" --network $network --repetitions "$repetitions" "${quick[@]}" \
    --json "$out/$result.json" >"$out/$result.txt"
}
bench handoff handoff --python $python
bench serve serve
bench store store
bench wire wire
bench plan plan
repetitions=1 bench scale scale # A round takes minutes.
echo "producer.py" >&2
for tls in "" --tls; do
  $python tests/bench/producer/producer.py --build "$build" --repetitions "$repetitions" "${quick[@]}" $tls \
    --json "$out/producer${tls#-}.json" >"$out/producer${tls#-}.txt"
done
# With --allocator both, twice as many processes share the CPU's caches. So these figures may be compared with each
# other, but not with those of the runs above.
bench handoff-allocator handoff --allocator both --python $python
bench serve-allocator serve --allocator both
results=("$out"/{handoff,serve,store,producer,producer-tls,wire,plan,scale,handoff-allocator,serve-allocator}.json)

if [ -n "${RR_PEERS:-}" ]; then
  echo "peers.sh" >&2
  tests/bench/peers.sh --build "$build" --out "$out" --paths 5c,6,7b,7c,7d --reps "$repetitions" >&2
  results+=("$out/results.json")
fi
python3 tests/bench/figures_table.py "${readme[@]}" "${results[@]}" | tee "$out/figures.md"
