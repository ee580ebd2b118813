// One codec at work on one sample.
#ifndef TESTS_BENCH_WIRE_OPERATION_H_
#define TESTS_BENCH_WIRE_OPERATION_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tests/bench/wire/sample.h"

namespace routing_replay::bench {

struct Operation {
  std::string name;
  absl::Span<const uint8_t> input;     // The bytes that one run reads. A memcpy of them is the floor.
  absl::Span<uint8_t> output;          // The bytes that one run writes.
  absl::Span<const uint8_t> expected;  // The expected output.
  std::function<void()> run;
  std::function<void()> collect;  // If set: copies the result of the last run to `output`.
  bool vectors = false;           // Whether each of Highway's instruction sets gets a figure.
  int64_t target = 0;             // The instruction set; 0: the best one.
};

// The client's work on rows before they are sent, as a whole and by steps; the server's work on what it receives; a
// trainer's work on what it reads. `sample` must outlive the operations.
std::vector<Operation> IngestOperations(const WireSample& sample);
std::vector<Operation> ServerOperations(const WireSample& sample);
std::vector<Operation> ReadOperations(const WireSample& sample);
// The client's work on a response in JSON.
std::vector<Operation> TextOperations(const WireSample& sample);
// zstd level 1 of RAW blocks.
std::vector<Operation> ZstdOperations(const WireSample& sample);

// Bytes of RAW blocks divided by the bytes of their zstd frames.
double ZstdRatio(const WireSample& sample);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_WIRE_OPERATION_H_
