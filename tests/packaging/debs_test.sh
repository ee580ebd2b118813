#!/usr/bin/env bash
# debs_test.sh BUILD: checks the metadata and contents of the Debian packages of a built tree, and runs their programs
# after unpacking. clean_root_test.sh installs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$(realpath "$1")
debs=$build/debs-test
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
for tool in dpkg-shlibdeps file help2man; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

rm -rf "$debs"
deploy/build_debs.sh --no-install --build "$build" --out "$debs"
for name in server client dev; do
  deb=$debs/routing-replay-${name}_$version-1_amd64.deb
  [ "$(dpkg-deb -f "$deb" Version)" = "$version-1" ] || fail "$deb has another version"
  dpkg-deb -x "$deb" "$debs/$name"
  ! grep -rIlF -e "$build" -e "$PWD" "$debs/$name" || fail "the files above name folders of the build"
  doc=$debs/$name/usr/share/doc/routing-replay-$name
  python3 tests/packaging/check_notices.py --name "routing-replay-$name" --version "$version" --parts libabsl-dev "$doc"
  [ -s "$doc/copyright" ] && [ -s "$doc/changelog.gz" ] || fail "$name has no copyright or changelog"
done
[[ $(dpkg-deb -f "$debs"/routing-replay-server_*.deb Depends) == *"libgrpc++1.51 (>= "*"librocksdb7.8 (>= "* ]] ||
  fail "the server's dependencies are not those of its libraries"
[[ $(dpkg-deb -f "$debs"/routing-replay-dev_*.deb Depends) == *"routing-replay-client (= $version-1)"* ]] ||
  fail "the development package does not depend on its version of the client"

# Every file that the guide (OPERATING.md) names must be installed.
doc=$debs/server/usr/share/doc/routing-replay-server
named=$(grep -oE '`([a-z_]+/[A-Za-z0-9_./-]+|[A-Za-z]+\.(md|gz))`' "$doc/OPERATING.md" | tr -d '`' | grep -v '^application/')
[ "$(wc -l <<<"$named")" -gt 8 ] || fail "the guide names nothing"
for file in $named; do [ -e "$doc/$file" ] || fail "OPERATING.md names $file, which is not installed"; done

# No file may be in two packages.
for name in server client dev; do (cd "$debs/$name" && find . ! -type d); done | sort | uniq -d | grep . &&
  fail "the files above are in two packages"
for file in server/usr/bin/routing-replay-server server/etc/routing-replay/server.yaml \
  server/usr/lib/systemd/system/routing-replay-server.service server/usr/lib/sysusers.d/routing-replay-server.conf server/usr/share/man/man8/routing-replay-server.8.gz client/usr/bin/rrctl \
  client/usr/lib/librouting_replay.so.2 client/usr/share/man/man1/rrctl.1.gz \
  dev/usr/include/routing_replay/c_api.h \
  dev/usr/include/routing_replay/trainer/capi.h dev/usr/include/routing_replay/client.h \
  dev/usr/include/routing_replay/v1/common.proto dev/usr/lib/librouting_replay_cxx_wire.a \
  dev/usr/lib/cmake/routing_replay/routing_replay-config.cmake; do
  [ -s "$debs/$file" ] || fail "there is no $file"
done
[ "$(readlink "$debs/dev/usr/lib/librouting_replay.so")" = librouting_replay.so.2 ] ||
  fail "librouting_replay.so does not link to librouting_replay.so.2"

"$debs/server/usr/bin/routing-replay-server" --config "$debs/server/etc/routing-replay/server.yaml" --check-config >/dev/null ||
  fail "the server rejects the settings file of its package"

PATH=$debs/server/usr/bin:$debs/client/usr/bin:$PATH tests/packaging/smoke.sh

if command -v lintian >/dev/null; then
  # --allow-root only suppresses lintian's warning about running as root.
  lintian --fail-on error,warning --allow-root "$debs"/*.deb || fail "lintian is not content"
else
  echo "not checked by lintian, which is not installed"
fi
echo PASSED
