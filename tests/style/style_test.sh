#!/usr/bin/env bash
# style_test.sh BUILD [--fix]: checks that all C++, CUDA and Python is formatted as .clang-format and .ruff.toml say,
# and that ruff reports nothing. With --fix it formats the files.
#
# ruff is installed from the Python package index into BUILD, once. A missing tool is reported and its check skipped; if
# both are missing, the exit status is 77.
set -euo pipefail
build=$(realpath "$1")
fix=${2-}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folders=(client deploy proto server tests trainer_plugin)
failed= looked=

# Other versions of clang-format break lines differently.
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
  looked=yes
  options=(--dry-run -Werror)
  [ -z "$fix" ] || options=(-i)
  find "${folders[@]}" -regex '.*\.\(h\|cc\|cu\|cuh\)' -print0 | xargs -0 clang-format "${options[@]}" || failed=yes
else
  echo "C++ is not checked: there is no clang-format 14 (Debian 12: apt-get install clang-format)"
fi

ruff=$build/style/bin/ruff
if [ ! -x "$ruff" ]; then
  { python3 -m venv "$build/style" && "$build/style/bin/pip" install -q --disable-pip-version-check 'ruff==0.17.6'; } ||
    echo "Python is not checked: ruff cannot be fetched from the Python package index"
fi
if [ -x "$ruff" ]; then
  looked=yes
  "$ruff" check --quiet --no-cache ${fix:+--fix} . || failed=yes
  "$ruff" format --quiet --no-cache $([ -n "$fix" ] || echo --check) . || failed=yes
fi

[ -n "$looked" ] || exit 77
[ -z "$failed" ] || { echo "tests/style/style_test.sh $1 --fix lays out what can be" >&2; exit 1; }
