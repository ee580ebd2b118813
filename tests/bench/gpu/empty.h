// The cost of a kernel launch alone.
#ifndef TESTS_BENCH_GPU_EMPTY_H_
#define TESTS_BENCH_GPU_EMPTY_H_

struct CUstream_st;

namespace routing_replay::bench {

// Launches a kernel of one warp that does nothing.
void LaunchEmpty(CUstream_st* stream);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_GPU_EMPTY_H_
