#!/usr/bin/env bash
# Builds the Debian packages routing-replay-server, -client and -dev for this Debian release.
#
#   deploy/build_debs.sh [--out DIR] [--build DIR] [--no-install]
#
#   --out DIR     folder for the packages (default: dist)
#   --build DIR   a release build (default: build/release, built if needed)
#   --no-install  does not install system packages
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/package_options.sh

if [ -z "$build" ]; then
  build=build/release
  [ -z "$install" ] || deploy/install_build_deps.sh
  cmake --preset release
  cmake --build $build -j "$(nproc)" --target rr_packages
fi
for tool in dpkg-shlibdeps file help2man; do
  command -v $tool >/dev/null || { echo "$tool is missing; deploy/install_build_deps.sh installs it" >&2; exit 1; }
done
mkdir -p "$out"
out=$(realpath "$out")
(cd "$build" && rm -rf debs && cpack -G DEB >cpack.log 2>&1) || { cat "$build/cpack.log" >&2; exit 1; }
cp "$build"/debs/*.deb "$out"
ls -l "$out"/routing-replay-*.deb
