#!/usr/bin/env bash
# Installs what is needed, builds, and runs a demonstration on this machine: 4 rollout workers record expert ids on one
# server, 8 trainer ranks replay them. Every id that a rank receives is compared with an independent calculation.
#
#   deploy/quickstart.sh [--build-only] [--no-install]
#
#   --build-only  stops after the build
#   --no-install  leaves the system's packages alone
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$root/deploy/quickstart.sh"; }

install=yes
build_only=
while [ $# -gt 0 ]; do
  case $1 in
    --build-only) build_only=yes ;;
    --no-install) install= ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

[ -z "$install" ] || "$root/deploy/install_build_deps.sh"
(
  cd "$root"
  cmake --preset release
  cmake --build build/release -j "$(nproc)" --target routing-replay-server rrctl routing_replay_library
)
[ -z "$build_only" ] || exit 0
export PYTHONPATH=$root/client/python/src:$root/trainer_plugin/python/src
export ROUTING_REPLAY_LIBRARY_DIR=$root/build/release/lib
exec /usr/bin/python3 "$root/deploy/quickstart/main.py" --server "$root/build/release/bin/routing-replay-server"
