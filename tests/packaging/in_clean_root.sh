#!/usr/bin/env bash
# in_clean_root.sh debs|dev|wheels: installs packages from /packages in this root file system, as a user would, and uses
# them. clean_root_test.sh runs it there.
set -euo pipefail
packages=/packages

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# added PACKAGE…: installs the packages with their dependencies, but without recommended packages.
added() { apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "$@" >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; fail "apt-get"; }; }

# dpkg need not sync files to disk: this root file system is temporary.
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/quick
case $1 in
  debs)
    added "$packages"/routing-replay-server_*.deb
    command -v rrctl >/dev/null && fail "the server's package contains rrctl"
    routing-replay-server --config /etc/routing-replay/server.yaml --check-config >/dev/null
    added "$packages"/routing-replay-client_*.deb
    tests/packaging/smoke.sh
    ldconfig -p | grep -q 'librouting_replay.so.2 ' || fail "the loader's cache does not have the C library"
    [ "$(dpkg -V routing-replay-server routing-replay-client | grep -v usr/share || true)" = "" ] || fail "files differ"
    apt-get -qq purge -y routing-replay-server routing-replay-client >/dev/null
    [ ! -e /etc/routing-replay ] && [ ! -e /usr/bin/rrctl ] || fail "purging left something"
    ;;
  dev)
    added "$packages"/routing-replay-{client,dev}_*.deb
    # Installs only the packages that a program without gRPC needs.
    added cmake g++ make
    build_consumer() {
      cmake -S tests/packaging/consumer -B /tmp/consumer --fresh "-DCOMPONENTS=$1" >/tmp/cmake.log || { cat /tmp/cmake.log; fail "cmake"; }
      cmake --build /tmp/consumer --parallel 2 >/tmp/cmake.log || { cat /tmp/cmake.log; fail "build failed"; }
      ctest --test-dir /tmp/consumer --output-on-failure --no-tests=error
    }
    build_consumer "wire;trainer"
    # Installs all packages that the development package recommends.
    mapfile -t recommended < <(dpkg-query -W -f '${Recommends}' routing-replay-dev | tr -d ' ' | tr , '\n')
    added "${recommended[@]}"
    build_consumer "wire;trainer;client;trainer_fetch"
    # Builds and runs a C program that uses the C library.
    cat >/tmp/program.c <<'C'
#include <routing_replay/c_api.h>
#include <routing_replay/trainer/capi.h>
int main(void) { rr_object_free(0); return rr_abi_version() == RR_ABI_VERSION ? 0 : 1; }
C
    cc -o /tmp/program /tmp/program.c -lrouting_replay && /tmp/program || fail "the C library"
    ;;
  wheels)
    apt-get -qq update
    added python3 python3-venv
    python3 -m venv /tmp/venv
    # pip needs the package index only for NumPy; this root file system may not reach it.
    export PIP_RETRIES=0 PIP_DEFAULT_TIMEOUT=10
    if /tmp/venv/bin/pip install -q "$packages"/*.whl >/tmp/pip.log 2>&1; then
      echo "wheels with their dependencies from the package index"
    else
      added python3-numpy
      python3 -m venv --system-site-packages --clear /tmp/venv
      /tmp/venv/bin/pip install -q --no-index "$packages"/*.whl
      echo "wheels with Debian's NumPy: no package index can be reached"
    fi
    PATH=/tmp/venv/bin:$PATH tests/packaging/smoke.sh
    /tmp/venv/bin/python tests/packaging/smoke.py
    ;;
  *) fail "debs, dev or wheels expected, got $1" ;;
esac
echo "$1: PASSED"
