#!/usr/bin/env bash
# SGLang itself on the CPU: its engine and its server through adapters, trajectories, attachments, the plug-in and the
# recipe, each stored row beside what the engine gave and beside what transformers choose in fp32 with the same weights.
#
#   tests/peers/sglang.sh [--build DIR]
#
#   --build DIR      a built release tree (default: build/release, built where needed)
#
# The environment build/peers/sglang is made once, in two minutes, and takes 0.5 GB beside that of vllm.sh, whose torch,
# transformers and Triton it has. The tests take eight minutes. Exit status 77: no packages are to be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

version=0.5.23

build=
peer_options --build "$@"

# not_pinned PYTHON: SGLang registers all host memory with CUDA; here only where there is CUDA.
not_pinned() {
  local file
  file=$(peer_site "$1")/sglang/srt/mem_cache/pool_host/common.py
  sed -i '/buffer = allocator.allocate(/{n;s/    if pin_memory:/    if pin_memory and torch.cuda.is_available():/}' "$file"
  grep -q 'if pin_memory and torch.cuda.is_available():' "$file"
}

# What SGLang needs that vLLM does not, without what is for GPUs alone.
packages="sglang==$version airportsdata asttokens blobfile build decorator diskcache distro easydict executing gguf
  IPython jedi kernels==0.14.1 matplotlib-inline nest_asyncio nvidia-ml-py openai-harmony==0.0.4 orjson
  outlines==0.1.11 outlines_core==0.1.26 parso pexpect prompt_toolkit ptyprocess pure_eval py-spy pycountry pygments
  python-dateutil referencing rpds-py scipy soundfile stack_data torchvision==0.28.0 traitlets wcwidth xxhash zstandard"
peer_vllm >/dev/null && python=$(MADE_BY=not_pinned peer_environment sglang vllm --no-deps $packages) ||
  { echo "skipped: no packages for SGLang"; exit 77; }
build=$(peer_build "$build" routing_replay_library routing-replay-server)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PEER_MODELS=$work/models PEER_KEPT=$work/kept
export PYTHONPATH=$PWD/client/python/src:$PWD/tests/peers PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
export ROUTING_REPLAY_LIBRARY_DIR=$build/lib ROUTING_REPLAY_SERVER=$build/bin/routing-replay-server
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
"$python" -m common.models "$PEER_MODELS"
status=0
for test in engine weights guesses cache families http; do
  echo "== $test"
  "$python" tests/peers/sglang/${test}_test.py || status=1
done
echo "== beside transformers"
"$python" -m common.chosen "$PEER_KEPT" "$PEER_MODELS" || status=1
[ $status -ne 0 ] || "$python" -m common.support SGLang $version \
  'Engine and its server on the CPU, models of five families' \
  'one line about pinned memory; torch 2.13 for 2.14; of n-gram guesses and HiCache the kernels'
exit $status
