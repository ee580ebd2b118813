#!/usr/bin/env bash
# wheels_test.sh BUILD: installs the wheels of a built tree in an empty virtual environment of the system's Python, and
# a second time beside another major version of protobuf.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$1 wheels=$1/wheels/dist

if ! python3 -m venv "$build/wheels/probe" || ! "$build/wheels/probe/bin/pip" download --quiet --no-deps \
  --dest "$build/wheels/probe" packaging; then
  echo "no virtual environments, or no package index can be reached"
  exit 77
fi
rm -rf "$wheels"
if told=$(deploy/build_wheels.sh --no-install --build "$build/wheels/probe" --out "$wheels" 2>&1) ||
  [[ $told != *"must be a built release tree"* ]]; then
  echo "FAILED: build_wheels.sh must reject a tree that is not built: $told" >&2
  exit 1
fi
deploy/build_wheels.sh --no-install --build "$build" --out "$wheels"
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
[ "$(ls "$wheels" | grep -c "^routing_replay[a-z_]*-$version-py3-")" = 2 ] || { echo "FAILED: wheels of another version" >&2; exit 1; }
rm -rf "$build/wheels/opened"
for package in routing_replay routing_replay_server; do
  opened=$build/wheels/opened/$package
  python3 -m zipfile -e "$wheels/$package"-*.whl "$opened"
  python3 tests/packaging/check_notices.py --name "${package//_/-}" --version "$version" --parts libabsl-dev \
    --libraries "$opened/$package.libs" "$opened/$package-$version.dist-info"/{licenses,sboms}
  # What a package index displays.
  metadata=$opened/$package-$version.dist-info/METADATA
  grep -q '^Classifier: License :: ' "$metadata" && sed '1,/^$/d' "$metadata" | grep -q routing-replay ||
    { echo "FAILED: $package has no description or classifiers" >&2; exit 1; }
done
kernels=()
if [ -e "$build/lib/librouting_replay_trainer_cuda.so" ]; then
  kernels=(--kernels)
  # Packaging rewrites the library's dependencies, and must not change the kernels.
  rm -rf "$build/wheels/kernels"
  python3 -m zipfile -e "$wheels"/routing_replay-*.whl "$build/wheels/kernels"
  for folder in "$build/lib" "$build/wheels/kernels/routing_replay/_lib"; do
    objcopy -O binary --only-section=.nv_fatbin "$folder/librouting_replay_trainer_cuda.so" "$build/wheels/kernels/fatbin"
    cksum "$build/wheels/kernels/fatbin"
  done | uniq | wc -l | grep -qx 1 || { echo "FAILED: the wheel's kernels are not those of the build" >&2; exit 1; }
fi
python3 tests/packaging/try_wheels.py --wheels "$wheels" "${kernels[@]}"
python3 tests/packaging/try_wheels.py --wheels "$wheels" --with grpcio --with 'protobuf<5'
