#!/usr/bin/env bash
# What the trainer plugin's recipe for SkyRL names, looked up in its own source: modules, functions, fields and options.
# Nothing of it is installed or imported.
#
#   tests/peers/frameworks.sh
#
# Seconds, and 10 MB. Exit status 77: no packages are to be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/peers/environment.sh

skyrl=0.4.0

peer_options '' "$@"

# unpacked PYTHON: the wheel as a folder of its environment.
unpacked() {
  local wheels
  wheels=$(dirname "$(dirname "$1")")/wheels
  "$1" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$wheels" "skyrl==$skyrl" &&
    "$1" -m zipfile -e "$wheels"/skyrl-*.whl "$wheels" && rm "$wheels"/*.whl
}

python=$(MADE_BY=unpacked peer_environment "skyrl-source-$skyrl" '') || { echo "skipped: no package of SkyRL"; exit 77; }

RR_SKYRL=$(dirname "$(dirname "$python")")/wheels
export RR_SKYRL PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/trainer_plugin/python/tests
"$python" tests/peers/framework_contracts_test.py
"$python" tests/peers/common/support.py SkyRL $skyrl 'names in its source that the recipe uses'
