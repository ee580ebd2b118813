#!/usr/bin/env bash
# Tests the wheels with other Pythons than the system's, each in an empty virtual environment.
#
#   tests/peers/wheels.sh [--build DIR]
#
#   --build DIR      a release build (default: build/release, built if needed)
#
# Uses python3.X on PATH and pyenv's. Exit status 77 if there is none, or no package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

versions='3.10 3.12 3.13'

build=
while [ $# -gt 0 ]; do
  case $1 in
    --build)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      build=$2
      shift ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' tests/peers/wheels.sh; exit 0 ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
wheels=${build:-build/release}/wheels/dist
deploy/build_wheels.sh --no-install ${build:+--build "$build"} --out "$wheels" >/dev/null

# python_of VERSION: prints an interpreter that runs; a name on PATH may be a shim that does not run.
python_of() {
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python3; do
    if "$candidate" -c '' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

status=77
for version in $versions; do
  python=$(python_of "$version") || {
    echo "skipped: there is no Python $version"
    continue
  }
  echo "== Python $version"
  result=0
  "$python" tests/packaging/try_wheels.py --wheels "$wheels" || result=$?
  if [ $result -ne 77 ]; then
    [ $status -ne 77 ] || status=0
    [ $result -eq 0 ] || status=1
  fi
done
exit $status
