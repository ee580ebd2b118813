#!/bin/sh
# No kernel keeps anything in local memory: fails, naming it, for one that has a stack or local memory in the code of any
# architecture.
#
#   tests/support/cuda/check_spills.sh LIBRARY KERNELS ARCHITECTURE…
#
# LIBRARY holds machine code of each ARCHITECTURE (80, 90, …), and at least KERNELS kernels for each. cuobjdump is found
# on the PATH, in CUDA's folder, or by CUOBJDUMP. It comes with the CUDA toolkit; alone it is the package
# cuda-cuobjdump-X-Y of NVIDIA's repository, or nvidia-cuda-cuobjdump of PyPI. Without it: exit status 77 and the reason.
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
