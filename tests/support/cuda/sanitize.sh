#!/bin/sh
# Runs a test program under compute-sanitizer; exit status 77 and the reason where that cannot be done.
#
#   tests/support/cuda/sanitize.sh memcheck|racecheck|initcheck|synccheck PROGRAM [arguments]
#
# compute-sanitizer is found on the PATH, in CUDA's folder, or by COMPUTE_SANITIZER. It comes with the CUDA toolkit; alone
# it is the package cuda-sanitizer-X-Y of NVIDIA's repository, or nvidia-cuda-sanitizer-api of PyPI.
set -eu
tool=$1
program=$2
shift 2

# Without a GPU the program itself says so, and ends with 77.
"$program" --gtest_filter=-'*' "$@" || exit $?

sanitizer=${COMPUTE_SANITIZER:-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)}
if [ -z "$sanitizer" ]; then
  echo "no compute-sanitizer: package cuda-sanitizer of the CUDA toolkit, or nvidia-cuda-sanitizer-api of PyPI"
  exit 77
fi
exec "$sanitizer" --tool "$tool" --error-exitcode 1 "$program" "$@"
