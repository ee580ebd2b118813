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

nemo=${RR_NEMO_RL:-}
while [ $# -gt 0 ]; do
  case $1 in
    --nemo-rl)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      nemo=$2
      shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/peers/frameworks.sh; exit 0 ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
  shift
done

# unpacked PYTHON: the wheel as a folder of its environment.
unpacked() {
  local wheels
  wheels=$(dirname "$(dirname "$1")")/wheels
  "$1" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheels" "skyrl==$skyrl" &&
    "$1" -m zipfile -e "$wheels"/skyrl-*.whl "$wheels" && rm "$wheels"/*.whl
}

python=$(MADE_BY=unpacked peer_environment "skyrl-source-$skyrl" '') || { echo "skipped: no package of SkyRL"; exit 77; }
if [ -n "$nemo" ]; then
  nemo=$(realpath "$nemo")
  has=$(cd "$nemo" && find nemo_rl -name '*.py' | LC_ALL=C sort | xargs cat | sha256sum)
  [ "${has%% *}" = $sources ] || { echo "$nemo must be NeMo-RL at 7ea279ab, got other sources" >&2; exit 1; }
else
  echo "NeMo-RL is not looked at: no source tree; name one with --nemo-rl or RR_NEMO_RL"
fi

RR_SKYRL=$(dirname "$(dirname "$python")")/wheels
export RR_SKYRL RR_NEMO_RL=$nemo PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/trainer_plugin/python/tests
"$python" tests/peers/framework_contracts_test.py
"$python" tests/peers/common/support.py SkyRL $skyrl 'names in its source that the recipe uses'
[ -z "$nemo" ] ||
  "$python" tests/peers/common/support.py NeMo-RL 7ea279abfbeb 'names in its source that the recipe uses'
