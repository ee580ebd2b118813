#!/usr/bin/env bash
# Installs a build, moves the prefix elsewhere, and builds and runs tests/packaging/consumer against it.
#
#   install_test.sh "COMPONENT…"        the components that the build has
#
# Environment: BUILD and SOURCE, the folders of the build and of the repository; VERSION, of the project; CMAKE, CTEST,
# CMAKE_GENERATOR, CXX.
set -euo pipefail
read -ra components <<<"$1"

# The path is always the same, because the paths of headers are part of the keys of the compiler's cache (ccache).
work=$BUILD/install-test
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT
prefix=$work/moved

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# configure NAME ARGUMENT…: configures the project tests/packaging/consumer with the build folder $work/NAME.
configure() {
  local name=$1
  shift
  "$CMAKE" -S "$SOURCE/tests/packaging/consumer" -B "$work/$name" --no-warn-unused-cli \
    -DCMAKE_PREFIX_PATH="$prefix" -DVERSION="${VERSION%.*}" "$@"
}

# rejected TEXT ARGUMENT…: configuring the consumer must fail with a message that contains TEXT.
rejected() {
  local text=$1
  shift
  if configure rejected --fresh "$@" >"$work/rejected.log" 2>&1; then fail "configured with $*"; fi
  # CMake wraps its messages.
  tr -s ' \n' ' ' <"$work/rejected.log" | grep -qF "$text" || { cat "$work/rejected.log"; fail "no word of: $text"; }
}

# use NAME "COMPONENT…" ARGUMENT…: configures, builds and runs the consumer programs of these components.
use() {
  local name=$1 list=${2// /;}
  shift 2
  configure "$name" -DCOMPONENTS="$list" "$@"
  "$CMAKE" --build "$work/$name" --parallel 2
  "$CTEST" --test-dir "$work/$name" --output-on-failure --no-tests=error
}

echo "== install and move"
"$CMAKE" --install "$BUILD" --prefix "$work/first" >/dev/null
mv "$work/first" "$prefix"
for part in lib/librouting_replay.so include/routing_replay/c_api.h \
  include/routing_replay/trainer/capi.h include/routing_replay/v1/common.proto; do
  [ -f "$prefix/$part" ] || fail "$part is not installed"
done

if [[ " ${components[*]} " == *" trainer_cuda "* ]]; then
  for part in lib/librouting_replay_trainer_cuda.so include/routing_replay/trainer/cuda_capi.h; do
    [ -f "$prefix/$part" ] || fail "$part is not installed"
  done
fi

echo "== no path of this machine in installed files"
if grep -rIlF -e "$SOURCE" -e "$BUILD" -e "$work" "$prefix"; then fail "the files above name folders of the build"; fi
# Every header that an installed header includes must be installed.
grep -rhoE '#include "(routing_replay|proto|client|server|trainer_plugin)/[^"]+"' "$prefix/include" | sort -u |
  sed 's/.*"\(.*\)"/\1/' | while read -r header; do
    [ -f "$prefix/include/$header" ] || fail "$header is included but not installed"
  done

echo "== ${components[*]}"
use all "${components[*]}"

echo "== wire and trainer without gRPC"
use core "wire trainer" -DCMAKE_DISABLE_FIND_PACKAGE_gRPC=ON

echo "== the example host"
"$CMAKE" -S "$SOURCE/trainer_plugin/examples" -B "$work/example" -DCMAKE_PREFIX_PATH="$prefix"
"$CMAKE" --build "$work/example" --parallel 2
"$CTEST" --test-dir "$work/example" --output-on-failure --no-tests=error

echo "== what is rejected"
rejected "routing_replay has no component 'nonesuch' here; installed are wire, trainer" -DCOMPONENTS="wire;nonesuch"
IFS=. read -r major minor _ <<<"$VERSION"
rejected "\"$major.$((minor + 1))\"" -DCOMPONENTS=wire -DVERSION="$major.$((minor + 1))"
if [[ " ${components[*]} " == *" client "* ]]; then
  rejected "component 'client' of routing_replay needs what was not found: gRPC" -DCOMPONENTS=client \
    -DCMAKE_DISABLE_FIND_PACKAGE_gRPC=ON

  echo "== programs alone"
  "$CMAKE" --install "$BUILD" --component server --prefix "$work/server" >/dev/null
  found=$(cd "$work/server" && find . -type f | sort | tr '\n' ' ')
  [ "$found" = "./bin/routing-replay-server " ] || fail "component server has $found"
  "$work/server/bin/routing-replay-server" --version
  "$CMAKE" --install "$BUILD" --component client --prefix "$work/client" >/dev/null
  found=$(cd "$work/client" && find . ! -type d | sort | tr '\n' ' ')
  [ "$found" = "./bin/rrctl ./lib/librouting_replay.so.2 " ] || fail "component client has $found"
  "$work/client/bin/rrctl" --version
fi
echo PASSED
