#include "tests/bench/gpu/empty.h"

namespace routing_replay::bench {
namespace {

__global__ void EmptyKernel() {}

}  // namespace

void LaunchEmpty(CUstream_st* stream) { EmptyKernel<<<1, 32, 0, stream>>>(); }

}  // namespace routing_replay::bench
