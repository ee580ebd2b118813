#!/usr/bin/env bash
# Runs the README's recipe for rows in Mooncake, with Mooncake's own master and store over TCP. Takes a few seconds.
#
#   tests/peers/mooncake.sh [--build DIR]
#
#   --build DIR      a release build (default: build/release, built if needed)
#
# The environment build/peers/mooncake is created once, over that of torch. Exit status 77 if packages cannot be
# installed. Mooncake loads the Debian packages libibverbs1, librdmacm1, libnuma1 and liburing2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

build=
peer_options --build "$@"

environment() { peer_torch >/dev/null && peer_environment mooncake torch mooncake-transfer-engine-non-cuda==0.3.13.post1; }

python=$(environment) || { echo "skipped: the packages for Mooncake cannot be installed"; exit 77; }
"$python" -c 'import mooncake.store' || { echo "skipped: Mooncake cannot be loaded"; exit 77; }
build=$(peer_build "$build" routing_replay_library)
peer_paths "$build"
exec "$python" tests/peers/mooncake/keys_test.py
