#!/usr/bin/env bash
# Runs the Hugging Face interface with transformers' own models, and the README's recipe with a server, on the CPU, with
# one of the oldest supported versions, one of the last 4.x, the first 5.x and the newest supported one.
#
#   tests/peers/hf.sh [--python PYTHON] [--build DIR]
#
#   --python PYTHON  an interpreter that has torch and transformers (default: RR_TRANSFORMERS_PYTHON, otherwise virtual
#                    environments under build/peers, which are created once, share one torch and take several GB).
#                    Exit status 77 if neither Python nor packages are available
#   --build DIR      a release build (default: build/release, built if needed)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

versions='4.51.3 4.57.6 5.0.0 5.23.0'

python=${RR_TRANSFORMERS_PYTHON:-} build=
peer_options "--python --build" "$@"

# environments: prints the interpreters, one for each version of transformers.
environments() {
  local version
  peer_torch >/dev/null || return 1
  for version in $versions; do
    peer_environment "transformers-$version" torch 'numpy>=1.25' "transformers==$version" || return 1
  done
}

# with_peft: prints the interpreter that has PEFT and the newest of these versions of transformers.
with_peft() { peer_environment peft "torch,transformers-${versions##* }" peft; }

peft=
if [ -z "$python" ] && ! { python=$(environments) && peft=$(with_peft); }; then
  echo "skipped: no Python that can have transformers, or no packages; name one with --python or RR_TRANSFORMERS_PYTHON"
  exit 77
fi
build=$(peer_build "$build" routing_replay_library routing-replay-server)

peer_paths "$build"
status=0 standins=yes
while IFS= read -r each; do
  echo "== $("$each" -c 'import torch, transformers; print("transformers", transformers.__version__, "torch", torch.__version__)')"
  # The test of our stand-ins runs only once, because they are the same for all versions.
  [ -z "$standins" ] || "$each" trainer_plugin/python/tests/hf_standin_test.py || status=1
  standins=''
  "$each" tests/peers/hf/recipe_test.py && "$each" tests/peers/hf/families.py || status=1
done <<<"$python"
[ -z "$peft" ] || "$peft" tests/peers/hf/peft_test.py || status=1
exit $status
