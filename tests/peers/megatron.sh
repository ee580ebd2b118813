#!/usr/bin/env bash
# The torch operators and the Megatron face beside Megatron-Core's own objects, on the CPU: their tests, and the golden
# files that describe RouterReplay and TopKRouter.
#
#   tests/peers/megatron.sh [--python PYTHON] [--build DIR]
#
#   --python PYTHON  an interpreter that has megatron-core (default: the environment's RR_MEGATRON_PYTHON, else one of
#                    a virtual environment of its own under build/peers, which is made once and takes several GB:
#                    megatron-core 0.19.2 with Python 3.12 or later, else 0.16.1). Where neither Python nor packages are
#                    to be had there is nothing to do: exit status 77
#   --build DIR      a built release tree (default: build/release, built where needed)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/peers/megatron.sh; }

python=${RR_MEGATRON_PYTHON:-} build=''
while [ $# -gt 0 ]; do
  case $1 in
    --python | --build)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done

# environment: makes one with the newest megatron-core that a Python of this machine can have, and names its interpreter.
environment() {
  local candidate version
  for candidate in python3.12 python3.13 python3.11 python3.10; do
    "$candidate" -c '' 2>/dev/null || continue
    version=0.19.2
    [[ $candidate == python3.1[01] ]] && version=0.16.1
    local venv=$PWD/build/peers/megatron-core-$version
    if [ ! -e "$venv/complete" ]; then
      "$candidate" -m venv --clear "$venv" >&2
      "$venv/bin/pip" install --quiet "megatron-core==$version" 'torch>=2.6' 'numpy>=1.25' >&2 || return 1
      touch "$venv/complete"
    fi
    echo "$venv/bin/python"
    return
  done
  return 1
}

if [ -z "$python" ] && ! python=$(environment); then
  echo "skipped: no Python that can have megatron-core, or no packages; name one with --python or RR_MEGATRON_PYTHON"
  exit 77
fi
if [ -z "$build" ]; then
  build=build/release
  cmake --preset release >/dev/null
  cmake --build $build -j "$(nproc)" --target routing_replay_trainer_capi golden_runner
fi
build=$(realpath "$build")

export PYTHONPATH=$PWD/trainer_plugin/python/src PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
export ROUTING_REPLAY_LIBRARY_DIR=$build/lib RR_GOLDEN_PYTHON=$python
export ROUTING_REPLAY_GOLDEN_DATA=$PWD/tests/golden/data
status=0
for test in \
  collective \
  device \
  ops \
  megatron_faults_peer \
  megatron_gpu_peer \
  megatron_peer \
  megatron_schedule_peer \
  megatron_watch_peer \
  golden_megatron; do
  echo "== $test"
  "$python" trainer_plugin/python/tests/${test}_test.py || status=1
done
echo "== golden files"
"$build/bin/golden_runner" || status=1
exit $status
