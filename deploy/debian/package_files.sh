#!/usr/bin/env bash
# package_files.sh NAME VERSION BUILD PREFIX MAINTAINER: writes the files of Debian's package routing-replay-NAME that
# are not in its CMake components: copyright, changelog, notices and bill of materials, manual pages, completions,
# lintian's overrides.
#
# Called by cpack (deploy/cmake/packages.cmake) with the tree that it packs under PREFIX.
set -euo pipefail
name=$1 version=$2 build=$3 prefix=$4 maintainer=$5
package=routing-replay-$name
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Every build of one commit gives its files the same time.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH

doc=$prefix/share/doc/$package
install -d "$doc"
install -m 644 deploy/debian/copyright "$doc/copyright"
gzip -9 -n -c CHANGELOG.md >"$doc/changelog.gz"
{
  echo "$package ($version-1) unstable; urgency=medium"
  echo
  echo "  * Release $version; see changelog.gz."
  echo
  echo " -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9 -n -c >"$doc/changelog.Debian.gz"

# manual PROGRAM SECTION SUMMARY: writes PROGRAM's --help as a manual page.
manual() {
  install -d "$prefix/share/man/man$2"
  help2man --no-info --section="$2" --no-discard-stderr --name="$3" "$build/bin/$1" | gzip -9 -n \
    >"$prefix/share/man/man$2/$1.$2.gz"
}

# guide: copies OPERATING.md to $doc, and the files that it names, such as server/README.md, to $doc/server/README.md.
guide() {
  local file
  sed 's/`CHANGELOG\.md`/`changelog.gz`/' deploy/OPERATING.md >"$doc/OPERATING.md"
  grep -oE '`((client|deploy|proto|server|tests)/[A-Za-z0-9_./-]+|[A-Z]+\.md)`' "$doc/OPERATING.md" | tr -d '`' | sort -u |
    xargs -I{} find {} -type f -not -path '*/__pycache__/*' |
    while read -r file; do install -D -m 644 "$file" "$doc/$file"; done
}

case $name in
  server)
    files=("$build/bin/routing-replay-server")
    manual routing-replay-server 8 'carries expert choices from rollout to trainer'
    install -D -m 644 deploy/systemd/routing-replay-server.service \
      "$prefix/lib/systemd/system/routing-replay-server.service"
    install -D -m 644 deploy/systemd/routing-replay-server.conf "$prefix/lib/sysusers.d/routing-replay-server.conf"
    install -D -m 644 deploy/systemd/server.yaml "$prefix/../etc/routing-replay/server.yaml"
    guide
    ;;
  client)
    files=("$build/bin/rrctl" "$build"/lib/librouting_replay.so)
    manual rrctl 1 'look into a routing-replay server'
    ;;
  dev) files=("$build"/lib/librouting_replay_cxx_*.a) ;;
  *) echo "no package $package" >&2; exit 2 ;;
esac

deploy/notices.py write --name "$package" --version "$version" --build "$build" --out "$doc" "${files[@]}"
gzip -9 -n "$doc/THIRD_PARTY_NOTICES"
install -D -m 644 "deploy/debian/$package.lintian-overrides" "$prefix/share/lintian/overrides/$package"
find "$prefix/.." -type d -exec chmod 755 {} +
