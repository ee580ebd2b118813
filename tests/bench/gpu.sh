#!/usr/bin/env bash
# Measures the CUDA kernels on this machine's GPU and writes the figures, with date and hardware, to
# tests/bench/results.
#
#   tests/bench/gpu.sh [--build DIR] [--no-build] [--out DIR] [--rounds N] [--python PYTHON]
#
#   --build DIR      release build, in which gpu_bench is built (default: build/release)
#   --no-build       runs the existing gpu_bench, for a machine without cmake; it may come from another machine
#   --out DIR        folder for the JSON (default: tests/bench/results)
#   --rounds N       measured rounds, after a warm-up (default: 15)
#   --python PYTHON  an interpreter with torch (default: python3), for torch's unfused path; skipped without torch
#
# Measures realign, and router forward and backward for 8192 rows, K = 8, E = 128, 256 and 384, fp32 and bf16, each
# beside an empty launch and a device copy of the bytes that the kernel must move at least; in bf16 also 131072 rows,
# rows that route live, and 10 of 512 experts. If the interpreter has them, also torch's operators and Transformer
# Engine's router. Exit status 77, with the reason, without a GPU or without nvcc and a built gpu_bench. A machine that
# only runs gpu_bench needs CUDA's driver, python3 and the libraries that gpu_bench links to. Nothing else should run on
# the GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/bench/gpu.sh; }

build=build/release building=yes out=tests/bench/results rounds=15 python=python3
while [ $# -gt 0 ]; do
  case $1 in
    --build | --out | --rounds | --python)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    --no-build) building= ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

bench=$build/bin/gpu_bench
command -v cmake >/dev/null || building=
if [ -n "$building" ]; then
  [ -e "$build/CMakeCache.txt" ] || cmake --preset release -B "$build" >/dev/null
  if ! grep -q '^CMAKE_CUDA_COMPILER:[A-Z]*=/' "$build/CMakeCache.txt"; then
    echo "$build was configured without nvcc"
    exit 77
  fi
  cmake --build "$build" --target gpu_bench -j "$(nproc)" >&2
fi
if [ ! -e "$bench" ]; then
  echo "there is no $bench, and it is not built (--no-build, or no cmake)"
  exit 77
fi
if ! "$bench" --help >/dev/null; then
  echo "$bench does not start here; what it is linked to and cannot find:" >&2
  ldd "$bench" 2>&1 | grep -F 'not found' >&2
  exit 1
fi
for tool in python3 "$python"; do
  command -v "$tool" >/dev/null || { echo "no $tool, which merges the figures" >&2; exit 1; }
done
mkdir -p "$out"
figures=$(mktemp "$out/.gpu.XXXXXX")
trap 'rm -f "$figures"' EXIT
"$bench" --rounds "$rounds" --json "$figures"
"$python" tests/bench/gpu/unfused.py "$figures" --rounds "$rounds" || [ $? -eq 77 ]
# For example, "NVIDIA H200" becomes gpu-nvidia-h200.json. Figures of an earlier day are replaced.
name=$(python3 -c 'import json, re, sys
print("gpu-" + re.sub(r"[^a-z0-9]+", "-", json.load(open(sys.argv[1]))["host"]["gpu"].lower()).strip("-"))' "$figures")
mv "$figures" "$out/$name.json"
chmod 644 "$out/$name.json"
echo "$out/$name.json"
