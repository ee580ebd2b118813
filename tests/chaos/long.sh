#!/usr/bin/env bash
# The long runs that kill processes: 200 servers under load, each with a store that has to survive it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cmake --preset release >/dev/null
cmake --build build/release -j "$(nproc)" --target durable_store_test
RR_CRASH_ROUNDS=200 build/release/tests/chaos/durable_store_test
