#!/usr/bin/env bash
# in_image.sh ROOT ARGUMENT…: starts the image's server like a container runtime: the unpacked image is its whole file
# system and read-only, and its user is not root and cannot gain privileges. The process id stays the same. The server
# shares the machine's network, and /tmp, through which tests and server exchange files.
set -euo pipefail
root=$1
shift
if [ -z "${IN_IMAGE:-}" ]; then
  IN_IMAGE=yes exec unshare --mount "$0" "$root" "$@"
fi
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind /proc "$root/proc"
mount --rbind /tmp "$root/tmp"
exec env -i PATH=/usr/bin /usr/bin/setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+sys_chroot,+setuid,+setgid \
  /usr/sbin/chroot --userspec=65532:65532 "$root" /usr/bin/routing-replay-server "$@"
