// The cases of the GPU benchmark: tensors of 8192 rows, and for each case a function that launches it on a stream.
#ifndef TESTS_BENCH_GPU_WORK_H_
#define TESTS_BENCH_GPU_WORK_H_

#include <functional>
#include <string>
#include <vector>

struct CUstream_st;

namespace routing_replay::bench {

struct GpuWork {
  std::string name;  // "router.sigmoid.bf16.e256.forward"
  // The least bytes that must be read and written: whole 32-byte sectors where single logits are gathered.
  int64_t minimal_bytes = 0;
  std::function<void(CUstream_st*)> launch;
};

// Router cases: forward, backward and both in turn; softmax (after the choice) and sigmoid; fp32 and bf16; K = 8; E =
// 128, 256 and 384. In bf16 also: 16 times as many rows, one live row in 1024, only live rows, and softmax before a
// choice of 10 of 512 experts. Realign cases: 24 layers of one-byte ids, plain and packed in 7 bits, and 61 layers of
// two-byte ids. The launch functions own the tensors.
std::vector<GpuWork> MakeGpuWork(int64_t rows);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_GPU_WORK_H_
