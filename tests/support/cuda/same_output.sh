#!/usr/bin/env bash
# same_output.sh ON_GPU ON_CPU ARGUMENT…: two programs say the same. Exit status 77 where there is no GPU.
set -euo pipefail
on_gpu=$1 on_cpu=$2
shift 2
if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  echo "no CUDA device: there is no /dev/nvidia0"
  exit 77
fi
diff <("$on_gpu" "$@") <("$on_cpu" "$@")
echo "the same"
