#!/usr/bin/env bash
# What the trainer plugin's recipes for SkyRL and NeMo-RL name, looked up in their own source: modules, functions, fields
# and options. Nothing of them is installed or imported.
#
#   tests/peers/frameworks.sh [--nemo-rl DIR]
#
#   --nemo-rl DIR  github.com/NVIDIA-NeMo/RL at 7ea279ab (default: the environment's RR_NEMO_RL), as it has no package;
#                  without it SkyRL alone is looked at
#
# Seconds, and 10 MB. Exit status 77: no packages are to be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

skyrl=0.4.0
sources=8d742bf1186934e6f2f66ec87d116b5cac2bc04a6e3573f9b6ca94e1f20da981

nemo_rl=${RR_NEMO_RL:-}
peer_options --nemo-rl "$@"

# unpacked PYTHON: the wheel as a folder of its environment.
unpacked() {
  local wheels
  wheels=$(dirname "$(dirname "$1")")/wheels
  "$1" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheels" "skyrl==$skyrl" &&
    "$1" -m zipfile -e "$wheels"/skyrl-*.whl "$wheels" && rm "$wheels"/*.whl
}

python=$(MADE_BY=unpacked peer_environment "skyrl-source-$skyrl" '') || { echo "skipped: no package of SkyRL"; exit 77; }
if [ -n "$nemo_rl" ]; then
  nemo_rl=$(realpath "$nemo_rl")
  peer_sources "$nemo_rl" nemo_rl $sources 'NeMo-RL at 7ea279ab'
else
  echo "NeMo-RL is not looked at: no source tree; name one with --nemo-rl or RR_NEMO_RL"
fi

RR_SKYRL=$(dirname "$(dirname "$python")")/wheels
export RR_SKYRL RR_NEMO_RL=$nemo_rl PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/trainer_plugin/python/tests
"$python" tests/peers/framework_contracts_test.py
"$python" tests/peers/common/support.py SkyRL $skyrl 'names in its source that the recipe uses'
[ -z "$nemo_rl" ] ||
  "$python" tests/peers/common/support.py NeMo-RL 7ea279abfbeb 'names in its source that the recipe uses'
