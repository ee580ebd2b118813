#!/usr/bin/env bash
# ray_env.sh BUILD TEST.py ARGUMENT…: runs a test in an environment with Ray, which is created once in
# BUILD/deploy-tools. Exit status 77, with the reason, if Ray cannot be fetched from the Python package index.
set -euo pipefail
environment=$(realpath "$1")/deploy-tools/ray
test=$(dirname "${BASH_SOURCE[0]}")/$2
shift 2
mkdir -p "${environment%/*}"
exec 9>"$environment.lock"
flock 9
if [ ! -e "$environment/whole" ]; then
  rm -rf "$environment"
  if ! python3 -m venv "$environment" || ! "$environment/bin/pip" install --quiet --disable-pip-version-check \
    'ray==2.60.0' numpy; then
    echo "skipped: ray cannot be fetched from the Python package index"
    exit 77
  fi
  touch "$environment/whole"
fi
exec 9>&-
PYTHONDONTWRITEBYTECODE=1 exec "$environment/bin/python" "$test" "$@"
