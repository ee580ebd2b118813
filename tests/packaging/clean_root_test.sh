#!/usr/bin/env bash
# clean_root_test.sh BUILD: installs and uses the Debian packages and the wheels of a built tree, each kind in a root
# file system of its own that never had anything of ours.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$(realpath "$1")
work=$(mktemp -d /var/tmp/routing-replay-root.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
chmod 755 "$work"

# inside NAME COMMAND…: runs COMMAND in the root file system NAME, which it creates if needed.
inside() {
  local root=$work/$1
  shift
  tests/packaging/clean_root.sh --root "$root" "$@"
}

status=0
inside debs sh -c 'apt-get -qq update' || status=$?
if [ $status -ne 0 ]; then
  [ $status = 77 ] || echo "skipped: apt-get update fails in a separate root file system"
  exit 77
fi
echo "$SECONDS s: a root"
deploy/build_debs.sh --no-install --build "$build" --out "$work/debs/packages" >/dev/null

# Uses the wheels of wheels_test if they are newer than the build.
newer=$(find "$build/wheels/dist" -name '*.whl' -newer "$build/bin/routing-replay-server" -newer "$build/bin/rrctl" \
  -newer "$build/lib/librouting_replay.so" 2>/dev/null | wc -l) || true
parts=(wheels debs dev)
if [ "$newer" != 2 ]; then
  rm -rf "$build/wheels/dist"
  deploy/build_wheels.sh --no-install --build "$build" --out "$build/wheels/dist" >"$work/wheels.log" 2>&1 || {
    tail -3 "$work/wheels.log"
    echo "the wheels are not tested: they cannot be built here (wheels_test says why)"
    parts=(debs dev)
  }
fi
echo "$SECONDS s: packages"
for part in "${parts[@]}"; do
  case $part in
    # A root without the Debian packages: wheels must contain all they need.
    wheels)
      inside wheels true
      mkdir "$work/wheels/packages"
      cp "$build"/wheels/dist/*.whl "$work/wheels/packages"
      inside wheels tests/packaging/in_clean_root.sh wheels ;;
    # The same root for both, because the development package depends on the client's libraries.
    debs | dev) inside debs tests/packaging/in_clean_root.sh $part ;;
  esac
  echo "$SECONDS s: $part"
done
echo PASSED
