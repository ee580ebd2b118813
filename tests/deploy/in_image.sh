#!/usr/bin/env bash
# in_image.sh ROOT ARGUMENT…: the image's server as a container runtime starts it: the unpacked image is all of its file
# system and cannot be written to, its user is not root and can gain nothing. It keeps its process id.
# Of the machine it shares the network, and /tmp, by which tests and server hand each other files.
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
