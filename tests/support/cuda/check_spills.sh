#!/bin/sh
# Checks that no kernel uses local memory: fails, naming the kernel, if its code for any architecture has a stack or
# local memory.
#
#   tests/support/cuda/check_spills.sh LIBRARY KERNELS ARCHITECTURE…
#
# LIBRARY must hold machine code of each ARCHITECTURE (80, 90, …), and at least KERNELS kernels for each. cuobjdump is
# taken from CUOBJDUMP, the PATH or CUDA's folder. It is part of the CUDA toolkit, and also of the package
# cuda-cuobjdump-X-Y of NVIDIA's repository and nvidia-cuda-cuobjdump of PyPI. Exit status 77, with the reason, without
# it.
set -eu
library=$1
kernels=$2
shift 2
cuobjdump=${CUOBJDUMP:-$(PATH=$PATH:/usr/local/cuda/bin command -v cuobjdump || true)}
if [ -z "$cuobjdump" ]; then
  echo "no cuobjdump: package cuda-cuobjdump of the CUDA toolkit, or nvidia-cuda-cuobjdump of PyPI"
  exit 77
fi
"$cuobjdump" --dump-resource-usage "$library" | awk -v least="$kernels" -v wanted="$*" '
  /^arch = / { arch = substr($3, 4) }
  /^ Function / { name = $2 }
  /STACK:/ {
    ++count[arch]
    if ($0 !~ /STACK:0 / || $0 !~ /LOCAL:0 /) { print "sm_" arch " " name $0; bad = 1 }
  }
  END {
    split(wanted, archs, " ")
    for (i in archs) {
      if (count[archs[i]] < least) { print "sm_" archs[i] ": " count[archs[i]] + 0 " kernels, not " least; bad = 1 }
      else print "sm_" archs[i] ": " count[archs[i]] " kernels without local memory"
    }
    exit bad
  }'
