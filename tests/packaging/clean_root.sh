#!/usr/bin/env bash
# clean_root.sh --root DIR COMMAND…: runs COMMAND in a Debian 12 root file system at DIR that has none of our packages,
# and this repository's HEAD in /src/project. DIR is created if it is missing, and kept.
#
# If RR_CLEAN_ROOT, or else ../shared/tools/clean-root.sh, is a program that does the same (--minimal --root DIR --
# COMMAND…), it is used. Exit status 77, with the reason, if this machine cannot do it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ "${1:-}" = --root ] && [ $# -gt 2 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
root=$2
shift 2

skip() {
  echo "skipped: $*"
  exit 77
}

[ "$(id -u)" = 0 ] || skip "a separate root file system needs root's rights"
unshare -m true 2>/dev/null || skip "mounts are not allowed here"
tool=${RR_CLEAN_ROOT:-../shared/tools/clean-root.sh}
if [ -x "$tool" ]; then
  exec unshare -m --propagation private "$tool" --minimal --root "$root" -- "$@"
fi
command -v debootstrap >/dev/null || skip "debootstrap is not installed, and RR_CLEAN_ROOT is not set"

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
# The mounts are made in a private namespace, so they disappear when COMMAND ends.
exec unshare -m --propagation private bash -c '
  for each in proc sys dev; do mount --rbind "/$each" "$root/$each"; done
  exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    sh -c "cd /src/project && exec \"\$@\"" sh "$@"' _ "$@"
