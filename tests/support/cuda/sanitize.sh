#!/bin/sh
# Runs a test program under compute-sanitizer. Exit status 77, with the reason, if that is not possible.
#
#   tests/support/cuda/sanitize.sh memcheck|racecheck|initcheck|synccheck PROGRAM [arguments]
#
# compute-sanitizer is taken from COMPUTE_SANITIZER, the PATH or CUDA's folder. It is part of the CUDA toolkit, and also
# of the package cuda-sanitizer-X-Y of NVIDIA's repository and nvidia-cuda-sanitizer-api of PyPI.
set -eu
tool=$1
program=$2
shift 2

# Without a GPU the program itself prints the reason and exits with 77.
"$program" --gtest_filter=-'*' "$@" || exit $?

sanitizer=${COMPUTE_SANITIZER:-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)}
if [ -z "$sanitizer" ]; then
  echo "no compute-sanitizer: package cuda-sanitizer of the CUDA toolkit, or nvidia-cuda-sanitizer-api of PyPI"
  exit 77
fi
exec "$sanitizer" --tool "$tool" --error-exitcode 1 "$program" "$@"
