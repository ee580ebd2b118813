#!/usr/bin/env bash
# Runs the client in one process with other libraries that contain gRPC, protobuf or Abseil: grpcio, protobuf, Arrow
# Flight, Ray and torch, imported before it and after it, with local and global symbols, and through a fork. About six
# minutes.
#
#   tests/peers/neighbours.sh [--build DIR]
#
#   --build DIR      a release build (default: build/release, built if needed)
#
# Each environment build/peers/neighbours-* is created once, in seconds to a minute, and takes 0.1 to 0.5 GB. Exit
# status 77 if packages cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

build=
peer_options --build "$@"

# Combinations to test: NAME NEIGHBOURS PACKAGE…
cases='
grpcio-new grpcio,protobuf grpcio protobuf
grpcio-1.59 grpcio,protobuf grpcio==1.59.5 protobuf==4.25.8
protobuf-5 protobuf protobuf==5.29.5
protobuf-6 protobuf protobuf==6.33.0
flight flight pyarrow
ray ray ray
'
bundled=lib/bundled/librouting_replay.so  # The library of a wheel, if deploy/build_wheels.sh has built one.
build=$(peer_build "$build" routing_replay_library routing-replay-server $([ ! -e build/release/$bundled ] || echo bundled))
peer_paths "$build"
[ ! -e "$build/$bundled" ] || export ROUTING_REPLAY_LIBRARY_DIR=$build/lib/bundled
status=0
while read -r name neighbours packages; do
  [ -n "$name" ] || continue
  # shellcheck disable=SC2086 # Split $packages into words: one argument per package.
  python=$(peer_environment "neighbours-$name" '' numpy $packages) || { echo "skipped: the packages for $name cannot be installed"; exit 77; }
  echo "== $name"
  # shellcheck disable=SC2086
  "$python" tests/peers/neighbours/neighbours_test.py ${neighbours//,/ } || status=1
done <<<"$cases"
python=$(peer_torch) || exit 77
echo "== torch"
"$python" tests/peers/neighbours/neighbours_test.py torch || status=1
exit $status
