#!/usr/bin/env bash
# The Hugging Face face over transformers' own models, on the CPU: one of the oldest versions that is known, one of the
# last 4.x, the first of 5 and the newest known.
#
#   tests/peers/hf.sh [--python PYTHON] [--build DIR]
#
#   --python PYTHON  an interpreter that has torch and transformers (default: the environment's RR_TRANSFORMERS_PYTHON,
#                    else those of virtual environments of their own under build/peers, which are made once, share one
#                    torch and take several GB). Where neither Python nor packages are to be had there is nothing to do:
#                    exit status 77
#   --build DIR      a built release tree (default: build/release, built where needed)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

versions='4.51.3 4.57.6 5.0.0 5.23.0'

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/peers/hf.sh; }

python=${RR_TRANSFORMERS_PYTHON:-} build=''
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

# made DIR PYTHON PACKAGE...: a virtual environment with the packages, made once.
made() {
  local venv=$1 candidate=$2
  shift 2
  [ ! -e "$venv/complete" ] || return 0
  "$candidate" -m venv --clear "$venv" && "$venv/bin/pip" install --quiet "$@" || return 1
}

# environments: makes one per version over one that has torch, and names their interpreters.
environments() {
  local candidate version base=$PWD/build/peers/torch
  for candidate in python3.12 python3.13 python3.11 python3.10; do
    "$candidate" -c '' 2>/dev/null || continue
    made "$base" "$candidate" 'torch>=2.6' 'numpy>=1.25' >&2 || return 1
    touch "$base/complete"
    for version in $versions; do
      local venv=$PWD/build/peers/transformers-$version
      if [ ! -e "$venv/complete" ]; then
        made "$venv" "$base/bin/python" 'numpy>=1.25' "transformers==$version" >&2 || return 1
        "$base/bin/python" -c 'import site; print(site.getsitepackages()[0])' \
          >"$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
        touch "$venv/complete"
      fi
      echo "$venv/bin/python"
    done
    return
  done
  return 1
}

if [ -z "$python" ] && ! python=$(environments); then
  echo "skipped: no Python that can have transformers, or no packages; name one with --python or RR_TRANSFORMERS_PYTHON"
  exit 77
fi
if [ -z "$build" ]; then
  build=build/release
  cmake --preset release >/dev/null
  cmake --build $build -j "$(nproc)" --target routing_replay_trainer_capi
fi
build=$(realpath "$build")

export PYTHONPATH=$PWD/trainer_plugin/python/src PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
export ROUTING_REPLAY_LIBRARY_DIR=$build/lib
status=0 standins=yes
while IFS= read -r each; do
  echo "== $("$each" -c 'import torch, transformers; print("transformers", transformers.__version__, "torch", torch.__version__)')"
  # The stand-ins are the same for all.
  [ -z "$standins" ] || "$each" trainer_plugin/python/tests/hf_standin_test.py || status=1
  standins=''
  "$each" trainer_plugin/python/tests/hf_test.py || { status=1; continue; }
  python3 tests/peers/common/support.py transformers "$("$each" -c 'import transformers; print(transformers.__version__)')" \
    "all families"
done <<<"$python"
exit $status
