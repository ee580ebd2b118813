#!/usr/bin/env bash
# Builds an image of the server without Docker: an OCI archive for `docker load`, `podman load` or `skopeo copy`.
#
#   deploy/container/build_image.sh [--build DIR] [--out FILE] [--tag NAME:TAG]
#
#   --build DIR     a release build on Debian 12 (default: build/release)
#   --out FILE      the archive (default: routing-replay-server.tar)
#   --tag NAME:TAG  the image's name (default: routing-replay-server:VERSION)
#
# Prints the image's digest, which manifests should use. The same build gives the same digest. The image equals that of
# the Dockerfile: the programs and the libraries that they load, no shell, and a user that is not root and cannot write
# to any file of the image.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' deploy/container/build_image.sh; }

build=build/release out=routing-replay-server.tar tag=
while [ $# -gt 0 ]; do
  case $1 in
    --build | --out | --tag)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
if [ ! -x "$build/bin/routing-replay-server" ]; then
  echo "$build is not built: deploy/quickstart.sh --build-only" >&2
  exit 1
fi
[ -n "$tag" ] || tag=routing-replay-server:$("$build/bin/routing-replay-server" --version)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || echo 0)}"
export SOURCE_DATE_EPOCH
deploy/container/make_root.sh "$build" "$work/libraries" "$work/programs"
python3 deploy/container/oci_image.py --config deploy/container/config.json --tag "$tag" --out "$out" \
  "$work/libraries" "$work/programs"
