#!/usr/bin/env bash
# make_root.sh BUILD LIBRARIES PROGRAMS: writes the files of a container of the server into two new folders.
#
#   BUILD      a release build with routing-replay-server and rrctl, made on this Debian release
#   LIBRARIES  the shared libraries that the programs need, CA certificates, and users
#   PROGRAMS   the two programs, licences and the bill of materials. They change with every release, LIBRARIES seldom
#
# The Dockerfile and build_image.sh both copy the second folder over the first.
set -euo pipefail
build=$(realpath "$1") libraries=$2 programs=$3
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
server=$build/bin/routing-replay-server rrctl=$build/bin/rrctl
umask 022
mkdir -p "$libraries" "$programs"
libraries=$(realpath "$libraries") programs=$(realpath "$programs")

install -D --strip -t "$programs/usr/bin" "$server" "$rrctl"

# /lib and /lib64 are links to /usr, as on Debian itself: packages and loaders name libraries by either path.
mkdir -p "$libraries"/usr/{lib,lib64,bin} "$libraries"/{dev,etc/routing-replay,proc,sys,tmp,var/lib/routing-replay}
ln -s usr/lib "$libraries/lib"
ln -s usr/lib64 "$libraries/lib64"
deploy/notices.py libraries "$server" "$rrctl" | while read -r file; do
  install -D -m 755 "$file" "$libraries/usr/${file#/usr/}"
done

# The CA certificates of public authorities are needed for rediss:// servers whose certificates they issued.
install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$libraries/etc/ssl/certs/ca-certificates.crt"
install -D -m 644 /usr/share/doc/ca-certificates/copyright "$libraries/usr/share/doc/ca-certificates/copyright"
echo 'hosts: files dns' >"$libraries/etc/nsswitch.conf"
printf '%s\n' 'root:x:0:0:root:/:/nonexistent' 'routing-replay:x:65532:65532:routing-replay:/:/nonexistent' \
  >"$libraries/etc/passwd"
printf '%s\n' 'root:x:0:' 'routing-replay:x:65532:' >"$libraries/etc/group"
chmod 1777 "$libraries/tmp"

doc=$programs/usr/share/doc/routing-replay
install -D -m 644 LICENSE "$doc/copyright"
deploy/notices.py write --name routing-replay-server-image --version "$("$server" --version)" --build "$build" \
  --contains "$libraries/usr/lib/$(uname -m)-linux-gnu" --out "$doc" "$server" "$rrctl"
