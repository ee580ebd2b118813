#!/usr/bin/env bash
# Makes a release from a clean tree: wheels, Debian packages, the image, a bill of materials, notes, signed checksums.
#
#   deploy/release.sh --key FILE [--out DIR] [--packages DIR] [--no-install]
#
#   --key FILE      the signing key: a private key of OpenSSH, or a public one whose private half ssh-agent has
#   --out DIR       a folder that is new or empty (default: dist/VERSION)
#   --packages DIR  takes wheels, Debian packages and image from DIR and builds nothing: for a machine that has the key
#                   and is not the one that built them
#   --no-install    does not install system packages
#
# The version is that of CMakeLists.txt. CHANGELOG.md must begin with this version and a date, and manifests and all
# products must state it; otherwise nothing is signed. Prints how to verify the release; the notes say it too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' deploy/release.sh; }

fail() {
  echo "release.sh: $*" >&2
  exit 1
}

key='' out='' packages='' options=()
while [ $# -gt 0 ]; do
  case $1 in
    --key | --out | --packages)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    --no-install) options+=("$1") ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
[ -n "$key" ] || { echo "--key is missing" >&2; exit 2; }
for tool in git ssh-keygen python3 dpkg-deb; do
  command -v $tool >/dev/null || fail "$tool is missing; on Debian: apt-get install git openssh-client python3"
done
# These checks come before the build, because they need no products.
fingerprint=$(ssh-keygen -lf "$key" | cut -d' ' -f2) || fail "$key must be a key of OpenSSH"
version=$(sed -n 's/^project(routing_replay VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
: "${out:=dist/$version}"
image=routing-replay-server-$version-image.tar
notes() { deploy/release.py notes --version "$version" --key "$fingerprint" --image "$image"; }

[ -z "$(git status --porcelain)" ] || fail "the tree must be clean: git status names what is not committed"
[ -z "$(ls -A "$out" 2>/dev/null)" ] || fail "$out must be new or empty"
notes >/dev/null
tags=$(git grep -hoE 'newTag: [0-9.]+' -- deploy/kubernetes | sort -u)
[ "$tags" = "newTag: $version" ] || fail "manifests in deploy/kubernetes must say newTag: $version, got $tags"

mkdir -p "$out"
out=$(realpath "$out")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
if [ -z "$packages" ]; then
  deploy/build_wheels.sh --out "$out" "${options[@]}"
  deploy/build_debs.sh --out "$out" "${options[@]}"
  /usr/bin/python3 tests/packaging/versions_test.py build/release
  deploy/container/build_image.sh --out "$out/$image"
fi
files=()
for name in routing_replay{,_server}-"$version-py3-*.whl" routing-replay-{server,client,dev}_"$version-*.deb" "$image"; do
  mapfile -t found < <(find "${packages:-$out}" -maxdepth 1 -name "$name")
  [ ${#found[@]} = 1 ] || fail "there must be one $name, got ${#found[@]}"
  [ -z "$packages" ] || cp "${found[0]}" "$out"
  files+=("$out/${found[0]##*/}")
done
bill=$(deploy/release.py bill --version "$version" "${files[@]}")
echo "$bill" >"$out/sbom.spdx.json"
notes >"$out/RELEASE_NOTES.md"
cd "$out"
sha256sum "${files[@]##*/}" sbom.spdx.json RELEASE_NOTES.md >SHA256SUMS
cd "$OLDPWD"
ssh-keygen -q -Y sign -f "$key" -n file "$out/SHA256SUMS"
ssh-keygen -Y check-novalidate -n file -s "$out/SHA256SUMS.sig" <"$out/SHA256SUMS" >/dev/null || fail "the signature is not good"

ls -l "$out"
cat <<END
To verify it, with KEY.pub, the public key of $fingerprint:
  printf 'routing-replay %s\n' "\$(cat KEY.pub)" >allowed_signers
  ssh-keygen -Y verify -f allowed_signers -I routing-replay -n file -s SHA256SUMS.sig <SHA256SUMS && sha256sum --check SHA256SUMS
When it is published: git tag -s v$version
END
