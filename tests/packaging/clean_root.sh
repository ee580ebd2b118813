#!/usr/bin/env bash
# clean_root.sh --root DIR COMMAND…: runs COMMAND in a Debian 12 root of its own at DIR, with nothing of ours installed and
# this repository's HEAD in /src/project. DIR is made where it is missing, and kept.
#
# Where RR_CLEAN_ROOT, or else ../shared/tools/clean-root.sh, is a program that does the same (--minimal --root DIR --
# COMMAND…), that one is used. Exit status 77, with the reason: it cannot be done here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ "${1:-}" = --root ] && [ $# -gt 2 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
root=$2
shift 2

skip() {
  echo "skipped: $*"
  exit 77
}

[ "$(id -u)" = 0 ] || skip "a root of its own needs the rights of root"
unshare -m true 2>/dev/null || skip "mounts are not allowed here"
tool=${RR_CLEAN_ROOT:-../shared/tools/clean-root.sh}
if [ -x "$tool" ]; then
  exec unshare -m --propagation private "$tool" --minimal --root "$root" -- "$@"
fi
command -v debootstrap >/dev/null || skip "there is no debootstrap, and RR_CLEAN_ROOT names no tool"

if [ ! -e "$root/etc/debian_version" ]; then
  mkdir -p "$root"
  mirror=$(cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list /etc/apt/sources.list 2>/dev/null |
    grep -oE 'https?://[^ ]+/debian/?( |$)' | head -1 | tr -d ' ') || true
  debootstrap --variant=minbase bookworm "$root" ${mirror:+"$mirror"} >"$root.log" || skip "debootstrap failed: $root.log"
  cp -a /etc/apt/sources.list.d/. "$root/etc/apt/sources.list.d/"
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
fi
rm -rf "$root/src"
mkdir -p "$root/src"
git clone -q . "$root/src/project"
export root
# Mounts of a namespace of its own go with it.
exec unshare -m --propagation private bash -c '
  for each in proc sys dev; do mount --rbind "/$each" "$root/$each"; done
  exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    sh -c "cd /src/project && exec \"\$@\"" sh "$@"' _ "$@"
