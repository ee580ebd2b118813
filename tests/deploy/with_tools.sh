#!/usr/bin/env bash
# with_tools.sh BUILD TEST.py ARGUMENT…: runs a test with the programs that tools.sh installs in BUILD/deploy-tools.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
tools=$("$here/tools.sh" "$1") || { status=$?; echo "$tools"; exit $status; }
shift
test=$here/$1
shift
DEPLOY_TOOLS=$tools PYTHONDONTWRITEBYTECODE=1 exec "$tools/venv/bin/python" "$test" "$@"
