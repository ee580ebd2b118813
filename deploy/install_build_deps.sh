#!/usr/bin/env bash
# Installs the Debian 12 packages that the build and the tests need. Does nothing if all of them are installed.
#
#   deploy/install_build_deps.sh [--tests]
#
#   --tests  also programs without which some tests are skipped: a browser, a proxy, lintian, clang-format, and tools to
#            sign a release
#
# Runs as root, or as a user who may use sudo. It does not install CUDA: the build uses nvcc if it finds one.
set -euo pipefail

packages=(
  build-essential cmake ninja-build ccache pkg-config
  libabsl-dev libgrpc-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libc-ares-dev libre2-dev libssl-dev zlib1g-dev
  libhwy-dev libisal-dev libxxhash-dev libzstd-dev
  nlohmann-json3-dev libsimdjson-dev libcli11-dev libyaml-cpp-dev prometheus-cpp-dev
  librocksdb-dev libboost-dev libkainjow-mustache-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  # Tests start Redis servers. The package redis-tools has the program redis-server, but does not start a service.
  redis-tools
  # Tests make certificates with openssl and networks with ip; tests/journeys uses the debugger.
  openssl iproute2 gdb
  # Needed to build RE2.
  unicode-data python3-six
  binutils file help2man libpython3-dev python3 python3-grpcio python3-numpy python3-protobuf python3-venv
)

case "${1-}" in
  --tests) packages+=(chromium haproxy lintian clang-format git openssh-client) ;;
  "") ;;
  *) echo "unknown option $1" >&2; exit 2 ;;
esac

missing() {
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "This is not a Debian system. Please install the equivalents of these Debian 12 packages, then build with CMake:" >&2
  printf '  %s\n' "${packages[@]}" >&2
  exit 1
fi

mapfile -t wanted < <(missing)
[ ${#wanted[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "These packages are missing, and installing them needs root or sudo:" >&2
    echo "  apt-get install ${wanted[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing ${#wanted[@]} packages: ${wanted[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${wanted[@]}" >/dev/null
