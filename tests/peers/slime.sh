#!/usr/bin/env bash
# Runs slime itself on the CPU with its own Megatron: its command line, its rollout and its trainer's step through the
# service, with the README's three lines, and its own R3 compared with ours. It has no package: --slime and
# --slime-megatron name source trees at the commits for which the tests are written.
#
#   tests/peers/slime.sh --slime DIR --slime-megatron DIR [--build DIR] [--wheels DIR]
#
#   --slime DIR           github.com/THUDM/slime at 624b824a (default: RR_SLIME)
#   --slime-megatron DIR  github.com/NVIDIA/Megatron-LM at 1dcf0daf, the version of slime's Dockerfile, without slime's
#                         patch, which is applied to a copy (default: RR_SLIME_MEGATRON)
#   --build DIR           a release build (default: build/release, built if needed)
#   --wheels DIR          uses only the packages of these wheels, as a user has them, and nothing of the tree
#
# Five minutes. The environments under build/peers are created once: slime, in three minutes, takes 0.5 GB in addition
# to torch; slime-megatron 24 MB; parser, in one minute, 0.1 GB in addition to those of tests/peers/sglang.sh. Exit
# status 77 without source trees, or if packages cannot be installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

sources=17a5d4167b2abe87b860172a82515330bd43a22ec1b7e31405f2241062b96c8b
megatron_sources=130ea32778d4636f29a500d6203bbc581a701bbe70ecec7cce1989b120d958e4

slime=${RR_SLIME:-} slime_megatron=${RR_SLIME_MEGATRON:-} build='' wheels=''
peer_options "--slime --slime-megatron --build --wheels" "$@"

[ -n "$slime" ] || { echo "skipped: no source tree of slime; name one with --slime or RR_SLIME"; exit 77; }
[ -n "$slime_megatron" ] || {
  echo "skipped: no source tree of slime's Megatron; name one with --slime-megatron or RR_SLIME_MEGATRON"
  exit 77
}
slime=$(realpath "$slime") slime_megatron=$(realpath "$slime_megatron")
peer_sources "$slime" slime $sources 'slime at 624b824a'
peer_sources "$slime_megatron" megatron $megatron_sources 'Megatron-LM at 1dcf0daf'

# patched PYTHON: adds slime's Megatron with its patch, as slime's Dockerfile does.
patched() {
  local site
  site=$(peer_site "$1")
  cp -r "$slime_megatron/megatron" "$site" && patch -s -p1 -d "$site" <"$slime/docker/patch/latest/megatron.patch"
}

if ! parser=$(peer_parser) ||
  ! python=$(MADE_BY=patched peer_environment slime-megatron torch,slime --no-deps packaging six); then
  echo "skipped: the packages for slime cannot be installed"
  exit 77
fi
[ -n "$wheels" ] || build=$(peer_build "$build" routing_replay_library routing-replay-server)

peer_paths "$build" "$wheels"
export PEER_FRAMEWORK=slime
PYTHONPATH+=:$PWD/tests/peers/megatron:$PWD/tests/peers/slime:$slime
status=0
echo "== slime: contract"
PYTHONPATH+=:$(peer_site "$python") "$parser" tests/peers/slime/contract_test.py || status=1
for test in identity differential step; do
  echo "== slime: $test"
  "$python" tests/peers/slime/${test}_test.py || status=1
done
[ $status -ne 0 ] || "$python" tests/peers/common/support.py slime 624b824a898a \
  'with its own Megatron: command line, rollout and trainer over Ray, its R3 compared with ours' \
  "random answers instead of an engine's, of sglang only the options, as a dataclass, stand-ins for \
torch_memory_saver and wandb, a name in its Megatron that is missing without Transformer Engine, a small model \
instead of a checkpoint's, attention and norms as for Megatron-Core, CPU instead of CUDA"
exit $status
