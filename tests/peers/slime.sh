#!/usr/bin/env bash
# slime itself on the CPU: its rollout and its trainer's step through the service, by the README's recipe, and its own
# R3 beside ours. It has no package: --slime names its source tree, of the commit that the tests are written for.
#
#   tests/peers/slime.sh --slime DIR [--build DIR]
#
#   --slime DIR  github.com/THUDM/slime at 624b824a (default: the environment's RR_SLIME)
#   --build DIR  a built release tree (default: build/release, built where needed)
#
# Three minutes. The environment build/peers/slime is made once, in three minutes, and takes 0.5 GB beside torch and
# megatron-core (tests/peers/megatron.sh). Exit status 77: no source tree, or no packages are to be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

sources=17a5d4167b2abe87b860172a82515330bd43a22ec1b7e31405f2241062b96c8b

slime=${RR_SLIME:-} build=
while [ $# -gt 0 ]; do
  case $1 in
    --slime | --build)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/peers/slime.sh; exit 0 ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
  shift
done

[ -n "$slime" ] || { echo "skipped: no source tree of slime; name one with --slime or RR_SLIME"; exit 77; }
slime=$(realpath "$slime")
has=$(cd "$slime" && find slime -name '*.py' | LC_ALL=C sort | xargs cat | sha256sum)
[ "${has%% *}" = $sources ] || { echo "$slime must be slime at 624b824a, got other sources" >&2; exit 1; }
if ! peer_torch >/dev/null || ! peer_environment megatron-core-0.19.2 torch megatron-core==0.19.2 'numpy>=1.25' \
  'grpcio>=1.51' 'protobuf>=3.20' >/dev/null ||
  ! python=$(peer_environment slime torch,megatron-core-0.19.2 ray httpx aiohttp requests transformers pyyaml tqdm \
    omegaconf pillow tensorboard pylatexenc pybase64); then
  echo "skipped: no packages for slime"
  exit 77
fi
build=$(peer_build "$build" routing_replay_capi routing_replay_trainer_capi routing-replay-server)

export PYTHONPATH=$PWD/trainer_plugin/python/src:$PWD/client/python/src:$PWD/tests/peers:$PWD/tests/peers/megatron
PYTHONPATH=$PYTHONPATH:$PWD/tests/peers/slime:$PWD/trainer_plugin/python/tests:$slime
export PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore OMP_NUM_THREADS=1
export ROUTING_REPLAY_LIBRARY_DIR=$build/lib ROUTING_REPLAY_SERVER=$build/bin/routing-replay-server
status=0
for test in contract differential step; do
  echo "== slime: $test"
  "$python" tests/peers/slime/${test}_test.py || status=1
done
[ $status -ne 0 ] || "$python" tests/peers/common/support.py slime 624b824a898a \
  'rollout and trainer over Ray, its R3 beside ours' \
  'stand-ins for sglang and torch_memory_saver, its patch of Megatron through RouterReplay, no checkpoint is read'
exit $status
