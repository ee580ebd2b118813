#!/usr/bin/env bash
# Measures the CUDA kernels on this machine's GPU and leaves the figures, with date and hardware, in tests/bench/results.
#
#   tests/bench/gpu.sh [--build DIR] [--out DIR] [--rounds N] [--python PYTHON]
#
#   --build DIR      a release tree (default: build/release); gpu_bench is built there
#   --out DIR        where the JSON goes (default: tests/bench/results)
#   --rounds N       counted rounds (default: 15)
#   --python PYTHON  an interpreter with torch (default: python3), for torch's unfused path; without torch it is left out
#
# Realign, and router forward and backward for 8192 rows, K = 8, E = 128, 256 and 384, fp32 and bf16, each beside an empty
# launch and a device copy of the bytes that must be moved at least. Without a GPU: exit status 77 and the reason.
# Nothing else should run on the GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/bench/gpu.sh; }

build=build/release out=tests/bench/results rounds=15 python=python3
while [ $# -gt 0 ]; do
  case $1 in
    --build | --out | --rounds | --python)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

[ -e "$build/CMakeCache.txt" ] || cmake --preset release -B "$build" >/dev/null
if ! grep -q '^CMAKE_CUDA_COMPILER:[A-Z]*=/' "$build/CMakeCache.txt"; then
  echo "no nvcc was found when $build was configured"
  exit 77
fi
cmake --build "$build" --target gpu_bench -j "$(nproc)" >&2
mkdir -p "$out"
figures=$(mktemp "$out/.gpu.XXXXXX")
trap 'rm -f "$figures"' EXIT
"$build/bin/gpu_bench" --rounds "$rounds" --json "$figures"
"$python" tests/bench/gpu/unfused.py "$figures" --rounds "$rounds" || [ $? -eq 77 ]
# "NVIDIA H200" of 2026-11-21: gpu-nvidia-h200.json. Figures of an earlier day are replaced.
name=$(python3 -c 'import json, re, sys
print("gpu-" + re.sub(r"[^a-z0-9]+", "-", json.load(open(sys.argv[1]))["host"]["gpu"].lower()).strip("-"))' "$figures")
mv "$figures" "$out/$name.json"
chmod 644 "$out/$name.json"
echo "$out/$name.json"
