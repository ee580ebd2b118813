#!/usr/bin/env bash
# wheels_test.sh BUILD: the wheels of a built tree in an empty virtual environment of the system's Python; a second time
# beside a protobuf of another major version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$1 wheels=$1/wheels/dist

if ! python3 -m venv "$build/wheels/probe" || ! "$build/wheels/probe/bin/pip" download --quiet --no-deps \
  --dest "$build/wheels/probe" packaging; then
  echo "no virtual environments, or no package index can be reached"
  exit 77
fi
rm -rf "$wheels"
deploy/build_wheels.sh --no-install --build "$build" --out "$wheels"
kernels=()
[ ! -e "$build/lib/librouting_replay_trainer_cuda.so" ] || kernels=(--kernels)
python3 tests/packaging/try_wheels.py --wheels "$wheels" "${kernels[@]}"
python3 tests/packaging/try_wheels.py --wheels "$wheels" --with 'protobuf<5'
