#!/usr/bin/env bash
# Builds gRPC's dependencies as archives that can be linked into a shared library, because code with thread-local
# variables in Debian's own archives is not position-independent.
#
#   deploy/static_libraries.sh DIR
#
# DIR/lib gets libprotobuf.a, libre2.a, libhwy.a and Abseil's archives, built from the sources of the installed Debian
# packages. Does nothing if they are already built for these versions. Takes about 3 minutes on two cores. Downloads the
# sources from Debian's servers; does not need root.
set -euo pipefail

out=$(realpath -m "${1:?must be a directory}")
declare -A of=([abseil]=libabsl-dev [protobuf]=libprotobuf-dev [re2]=libre2-dev [highway]=libhwy-dev)
declare -A options=(
  [abseil]='-DABSL_PROPAGATE_CXX_STD=ON'
  [protobuf]='-Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_BUILD_PROTOC_BINARIES=OFF'
  [re2]='-DRE2_BUILD_TESTING=OFF'
  [highway]='-DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF'
)

# Gives APT the lists of source packages, which it does not have by default.
mkdir -p "$out/apt/lists"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
  [ -f "$list" ] || continue
  sed -e 's/^Types:.*/Types: deb-src/' -e 's/^deb /deb-src /' "$list" >"$out/apt/${list##*/}"
done
apt=(apt-get -qq -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$out/apt"
  -o "Dir::State::Lists=$out/apt/lists" -o APT::Sandbox::User=root)

updated=
for source in abseil protobuf re2 highway; do
  version=$(dpkg-query -W -f '${source:Version}' "${of[$source]}")
  made=$out/$source-$version
  [ ! -e "$made/made" ] || continue
  # Systems other than Debian may have no sources; the error below then names what is missing.
  [ -n "$updated" ] || "${apt[@]}" update || true
  updated=yes
  rm -rf "$made"
  mkdir -p "$made"
  (cd "$made" && "${apt[@]}" source --download-only "$source=$version" && dpkg-source --no-check -x ./*.dsc source)
  # Debian's sources of RE2 do not include the files generated from the package unicode-data.
  [ $source != re2 ] ||
    PATH=/usr/bin:$PATH make -s -C "$made/source" REBUILD_TABLES=1 re2/perl_groups.cc re2/unicode_casefold.cc re2/unicode_groups.cc
  # shellcheck disable=SC2086  # ${options[...]} is not quoted, because it must split into several options.
  cmake -G Ninja -S "$made/source" -B "$made/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=17 \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_CXX_VISIBILITY_PRESET=hidden -DBUILD_SHARED_LIBS=OFF \
    -DBUILD_TESTING=OFF -DCMAKE_CXX_FLAGS='-w -ffunction-sections -fdata-sections' ${options[$source]}
  cmake --build "$made/build"
  mkdir -p "$out/lib"
  find "$made/build" -name '*.a' ! -name libprotobuf-lite.a ! -name 'lib*_test*.a' -exec cp -t "$out/lib" {} +
  rm -rf "$made/build" "$made/source"
  touch "$made/made"
done
