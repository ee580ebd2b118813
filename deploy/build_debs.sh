#!/usr/bin/env bash
# Builds the Debian packages routing-replay-server, -client and -dev for this Debian release.
#
#   deploy/build_debs.sh [--out DIR] [--build DIR] [--no-install]
#
#   --out DIR     where the packages go (default: dist)
#   --build DIR   a built release tree (default: build/release, built where needed)
#   --no-install  leaves the system's packages alone
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' deploy/build_debs.sh; }

out=dist build= install=yes
while [ $# -gt 0 ]; do
  case $1 in
    --out | --build)
      [ $# -gt 1 ] || { echo "$1 needs a folder" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    --no-install) install= ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

if [ -z "$build" ]; then
  build=build/release
  [ -z "$install" ] || deploy/install_build_deps.sh
  cmake --preset release
  cmake --build $build -j "$(nproc)" --target rr_packages
fi
for tool in dpkg-shlibdeps help2man; do
  command -v $tool >/dev/null || { echo "$tool is missing; deploy/install_build_deps.sh installs it" >&2; exit 1; }
done
mkdir -p "$out"
out=$(realpath "$out")
(cd "$build" && rm -rf debs && cpack -G DEB >cpack.log 2>&1) || { cat "$build/cpack.log" >&2; exit 1; }
cp "$build"/debs/*.deb "$out"
ls -l "$out"/routing-replay-*.deb
