#!/usr/bin/env bash
# clean_root_test.sh BUILD: the packages of a built tree where nothing of ours has ever been: each Debian package and each
# wheel is installed in a root of its own, and used.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$(realpath "$1")
work=$(mktemp -d /var/tmp/routing-replay-root.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
chmod 755 "$work"

# inside NAME COMMAND…: in the root NAME, which is made for it.
inside() {
  local root=$work/$1
  shift
  tests/packaging/clean_root.sh --root "$root" "$@"
}

status=0
inside debs sh -c 'apt-get -qq update' || status=$?
if [ $status -ne 0 ]; then
  [ $status = 77 ] || echo "skipped: no Debian packages can be had in a root of its own"
  exit 77
fi
echo "$SECONDS s: a root"
deploy/build_debs.sh --no-install --build "$build" --out "$work/debs/packages" >/dev/null

# Wheels of this build, if there are any yet.
newer=$(find "$build/wheels/dist" -name '*.whl' -newer "$build/bin/routing-replay-server" -newer "$build/bin/rrctl" \
  -newer "$build/lib/librouting_replay.so" 2>/dev/null | wc -l) || true
parts=(wheels debs dev)
if [ "$newer" != 2 ]; then
  rm -rf "$build/wheels/dist"
  deploy/build_wheels.sh --no-install --build "$build" --out "$build/wheels/dist" >"$work/wheels.log" 2>&1 || {
    tail -3 "$work/wheels.log"
    echo "the wheels are left out: they cannot be built here (wheels_test says more)"
    parts=(debs dev)
  }
fi
echo "$SECONDS s: packages"
for part in "${parts[@]}"; do
  case $part in
    # They bring what they need: nothing of the Debian packages may be there.
    wheels)
      inside wheels true
      mkdir "$work/wheels/packages"
      cp "$build"/wheels/dist/*.whl "$work/wheels/packages"
      inside wheels tests/packaging/in_clean_root.sh wheels ;;
    # Development files beside the libraries that they are of.
    debs | dev) inside debs tests/packaging/in_clean_root.sh $part ;;
  esac
  echo "$SECONDS s: $part"
done
echo PASSED
