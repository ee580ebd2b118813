#!/usr/bin/env bash
# slime itself on the CPU: its command line, its rollout and its trainer's step through the service, by the README's three
# lines, and its own R3 beside ours. It has no package: --slime names its source tree, of the commit that the tests are
# written for.
#
#   tests/peers/slime.sh --slime DIR [--build DIR]
#
#   --slime DIR  github.com/THUDM/slime at 624b824a (default: the environment's RR_SLIME)
#   --build DIR  a built release tree (default: build/release, built where needed)
#
# Five minutes. The environments under build/peers are made once: slime, in three minutes, takes 0.5 GB beside torch and
# megatron-core (tests/peers/megatron.sh), and parser, in one, 0.1 GB beside those of tests/peers/sglang.sh. Exit status
# 77: no source tree, or no packages are to be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

sources=17a5d4167b2abe87b860172a82515330bd43a22ec1b7e31405f2241062b96c8b

slime=${RR_SLIME:-} build=
peer_options "--slime --build" "$@"

[ -n "$slime" ] || { echo "skipped: no source tree of slime; name one with --slime or RR_SLIME"; exit 77; }
slime=$(realpath "$slime")
peer_sources "$slime" slime $sources 'slime at 624b824a'
python=$(peer_slime) && parser=$(peer_parser) || { echo "skipped: no packages for slime"; exit 77; }
build=$(peer_build "$build" routing_replay_library routing-replay-server)

peer_paths "$build"
export PEER_FRAMEWORK=slime
PYTHONPATH+=:$PWD/tests/peers/megatron:$PWD/tests/peers/slime:$slime
status=0
echo "== slime: contract"
PYTHONPATH+=:$(peer_site "$(peer_megatron 0.19.2)") "$parser" tests/peers/slime/contract_test.py || status=1
for test in identity differential step; do
  echo "== slime: $test"
  "$python" tests/peers/slime/${test}_test.py || status=1
done
[ $status -ne 0 ] || "$python" tests/peers/common/support.py slime 624b824a898a \
  'command line, rollout and trainer over Ray, its R3 beside ours' \
  "random answers for an engine's, of sglang the options alone, stand-ins for torch_memory_saver and wandb, \
Megatron-Core 0.19.2 for its Megatron, whose patch goes through RouterReplay, a small model in the place of a \
checkpoint's, attention and norms as beside Megatron-Core, CPU for CUDA"
exit $status
