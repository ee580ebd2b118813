#!/usr/bin/env bash
# Measures the standard hand-off through the service, with Python at both ends, beside the libraries that people use for
# it today, interleaved in the same run.
#
#   tests/bench/peers.sh [--peers DIR] [--build DIR] [--out DIR] [--allocator tuned|default] [--paths LIST] [bench.py's options]
#
#   --peers DIR   the peers' benchmark, which is not in this repository: a folder with bench.py, report.py and
#                 requirements.txt (default: RR_PEERS). Exit status 77 without it
#   --build DIR   release build (default: build/release, built if needed)
#   --out DIR     folder for results.json and the table (default: build/peers)
#   --allocator   tuned (default): all Python processes, including the peers', use the allocator settings of the README
#   --paths LIST  paths of the peers, for example 4,5c,7b; the service is always measured (default: all that can run)
#
# Builds the release tree, installs the peers' requirements into a virtual environment under build/peers, and runs in a
# network namespace with reno if permitted, because Ray looks for its address when it starts, and BBR congestion control
# distorts the loopback interface.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/bench/peers.sh; }

peers=${RR_PEERS:-} build='' out=build/peers allocator=tuned paths='' more=()
while [ $# -gt 0 ]; do
  case $1 in
    --peers | --build | --out | --allocator | --paths)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) more+=("$1") ;;
  esac
  shift
done
if [ -z "$peers" ] || [ ! -f "$peers/bench.py" ]; then
  echo "skipped: the peers' benchmark is not here; name its folder with --peers or RR_PEERS"
  exit 77
fi
peers=$(realpath "$peers")
mkdir -p "$out"
out=$(realpath "$out")

if [ -z "$build" ]; then
  build=build/release
  cmake --preset release >/dev/null
  cmake --build $build -j "$(nproc)" --target routing-replay-server routing_replay_library
fi
build=$(realpath "$build")

venv=$PWD/build/peers/venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --requirement "$peers/requirements.txt" 'numpy>=1.23'

service=routing_replay_service
[ -z "$paths" ] || more+=(--paths "$paths,$service,$service-i32")
export PYTHONPATH=$PWD/client/python/src:$PWD/trainer_plugin/python/src:$PWD/tests/bench/peers PYTHONDONTWRITEBYTECODE=1
export ROUTING_REPLAY_LIBRARY_DIR=$build/lib
export ROUTING_REPLAY_SERVER=$build/bin/routing-replay-server
[ "$allocator" = default ] ||
  export GLIBC_TUNABLES=glibc.malloc.trim_threshold=2147483647:glibc.malloc.mmap_threshold=33554432:glibc.malloc.mxfast=0:glibc.malloc.top_pad=4194304

# Ray would otherwise join an existing cluster on this machine, even a killed one.
RAY_TMPDIR=$(mktemp -d)
export RAY_TMPDIR
trap 'rm -rf "$RAY_TMPDIR"' EXIT
network=()
for try in "unshare --net" "unshare --net --map-root-user"; do
  if $try true 2>/dev/null; then
    read -ra network <<<"$try bash -c"
    network+=('ip link set lo up && sysctl -q -w net.ipv4.tcp_congestion_control=reno && exec "$@"' bash)
    break
  fi
done
[ ${#network[@]} -gt 0 ] || echo "cannot create a network namespace: using the host's network and congestion control"

cd "$peers"
"${network[@]}" "$venv/bin/python" bench.py --service $service --out "$out/results.json" "${more[@]}"
"$venv/bin/python" report.py "$out/results.json" | tee "$out/results.md"
