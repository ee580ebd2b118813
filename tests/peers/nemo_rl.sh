#!/usr/bin/env bash
# Runs NeMo-RL itself on the CPU with the README's lines: its `run_grpo.py` up to the start of its workers, its rollout
# and its policy's passes for log-probabilities, reference and training through the service, and its own R3 compared
# with ours. It has no package: --nemo-rl names its source tree at the commit for which the tests are written.
#
#   tests/peers/nemo_rl.sh --nemo-rl DIR [--build DIR]
#
#   --nemo-rl DIR  github.com/NVIDIA-NeMo/RL at 7ea279ab (default: RR_NEMO_RL)
#   --build DIR    a release build (default: build/release, built if needed)
#
# Two minutes of CPU time. The environment build/peers/nemo-rl is created once, in one minute, and takes 0.45 GB in
# addition to torch and megatron-core (tests/peers/megatron.sh). Exit status 77 without a source tree, or if packages
# cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

sources=8d742bf1186934e6f2f66ec87d116b5cac2bc04a6e3573f9b6ca94e1f20da981

nemo_rl=${RR_NEMO_RL:-} build=
peer_options "--nemo-rl --build" "$@"

[ -n "$nemo_rl" ] || { echo "skipped: no source tree of NeMo-RL; name one with --nemo-rl or RR_NEMO_RL"; exit 77; }
nemo_rl=$(realpath "$nemo_rl")
peer_sources "$nemo_rl" nemo_rl $sources 'NeMo-RL at 7ea279ab'
if ! peer_megatron 0.19.2 >/dev/null ||
  ! python=$(peer_environment nemo-rl torch,megatron-core-0.19.2 ray 'transformers>=5.5,<5.9' pydantic omegaconf \
    hydra-core pillow); then
  echo "skipped: the packages for NeMo-RL cannot be installed"
  exit 77
fi
build=$(peer_build "$build" routing_replay_library routing-replay-server)

peer_paths "$build"
PYTHONPATH+=:$PWD/tests/peers/megatron:$PWD/tests/peers/nemo_rl:$nemo_rl
export RR_NEMO_RL=$nemo_rl RAY_USAGE_STATS_ENABLED=0 HF_HUB_OFFLINE=1
status=0
for test in contract command differential step; do
  echo "== NeMo-RL: $test"
  "$python" tests/peers/nemo_rl/${test}_test.py || status=1
done
[ $status -ne 0 ] || "$python" tests/peers/common/support.py NeMo-RL 7ea279abfbeb \
  "run_grpo.py up to the start of its workers, multi-turn rollout, Policy and its Megatron worker on 1, 2 and 4 ranks, its \
R3 compared with ours" \
  "random answers instead of vLLM's, one process for driver and worker, a small model instead of a checkpoint's, \
attention and norms as for Megatron-Core, no clipping, stand-ins for megatron.bridge, Transformer Engine and loggers, \
CPU instead of CUDA"
exit $status
