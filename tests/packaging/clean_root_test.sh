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
if ! ls "$build"/wheels/dist/*.whl >/dev/null 2>&1; then
  deploy/build_wheels.sh --no-install --build "$build" --out "$build/wheels/dist"
fi
echo "$SECONDS s: packages"
# The wheels bring what they need: nothing of the Debian packages may be there.
for part in wheels debs dev; do
  case $part in
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
