#!/usr/bin/env bash
# Runs Megatron-Core itself on the CPU: its GPTModel and MoELayer under its own schedules, in one process and on four
# and eight ranks over gloo, with the README's recipe; the torch operators and the Megatron interface compared with its
# routers; and the golden files that describe RouterReplay and TopKRouter. With an older version only the operators and
# the interface.
#
#   tests/peers/megatron.sh [--build DIR]
#
#   --build DIR  a release build (default: build/release, built if needed)
#
# Six minutes on two busy cores. The environments under build/peers are created once: torch (5.4 GB), and 0.1 GB for
# each version. Exit status 77 if packages cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

newest=0.19.2 older=0.16.1

build=
peer_options --build "$@"

targets=(routing_replay_library routing-replay-server routing_replay_test_host golden_runner)
# If an earlier build left a kernel library, the tests would load it, so it is rebuilt from this tree.
[ ! -e build/release/lib/librouting_replay_trainer_cuda.so ] || targets+=(routing_replay_trainer_cuda_capi)
build=$(peer_build "$build" "${targets[@]}")
peer_paths "$build"
export ROUTING_REPLAY_GOLDEN_DATA=$PWD/tests/golden/data
status=0

# run VERSION PYTHON WHAT CHANGED TEST...: runs test files, given by their paths without _test.py, and records what they
# show.
run() {
  local version=$1 python=$2 what=$3 changed=$4 test failed=''
  shift 4
  for test in "$@"; do
    echo "== Megatron-Core $version: ${test##*/}"
    "$python" "${test}_test.py" || failed=yes
  done
  [ -z "$failed" ] || { status=1; return 0; }
  "$python" tests/peers/common/support.py Megatron-Core "$version" "$what" "$changed"
}

units=trainer_plugin/python/tests
faces=("$units"/{collective,device,ops,megatron_faults_peer,megatron_gpu_peer,megatron_peer,megatron_watch_peer})
python=$(peer_megatron $older) || { echo "skipped: the packages for Megatron-Core cannot be installed"; exit 77; }
run $older "$python" 'routers, interfaces' nothing "${faces[@]}"
python=$(peer_megatron $newest)
export RR_GOLDEN_PYTHON=$python
run $newest "$python" 'routers, interfaces' nothing "${faces[@]}" $units/golden_megatron
run $newest "$python" 'GPTModel under its schedules on 1, 4 and 8 ranks, with all of recompute, TP, PP, VPP, CP, EP' \
  "attention and norms where its own require Transformer Engine, CPU instead of CUDA" tests/peers/megatron/{gpt,gpt_ranks,recipe}
echo "== golden files"
"$build/bin/golden_runner" || status=1
exit $status
