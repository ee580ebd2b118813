#!/usr/bin/env bash
# Long random runs: each fuzz target on millions of inputs, and the property tests on many more seeds than by default.
#
#   tests/fuzz/long.sh    (FUZZ_INPUTS, RR_TRAJECTORY_SEEDS and RR_LAYOUT_TRIALS override the numbers)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export RR_TRAJECTORY_SEEDS=${RR_TRAJECTORY_SEEDS:-10000} RR_LAYOUT_TRIALS=${RR_LAYOUT_TRIALS:-100000}
build=build/release
property_tests='^(client_trajectory_model_test|(layout|replay)_.*_test)$'

cmake --preset release
cmake --build $build -j "$(nproc)"
for target in payload block message frame ring text document functions redis; do
  $build/tests/fuzz/${target}_fuzz_smoke "${FUZZ_INPUTS:-20000000}"
done
echo "Property tests with $RR_TRAJECTORY_SEEDS trajectories and $RR_LAYOUT_TRIALS layouts each:"
ctest --preset release -R "$property_tests" --output-on-failure
