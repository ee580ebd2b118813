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
  absl::Span<const uint8_t> input;     // What one run reads: a memcpy of it is the floor.
  absl::Span<uint8_t> output;          // What it writes …
  absl::Span<const uint8_t> expected;  // … and what stands there then.
  std::function<void()> run;
  std::function<void()> collect;  // Where set: brings the result of the last run into `output`.
  bool vectors = false;           // Worth a figure for each instruction set …
  int64_t target = 0;             // … of Highway's; 0: the best one.
};

// What the client does to rows before they are sent, and each step of it; what the server does to what it receives;
// what a trainer does to what it reads. `sample` must outlive them.
std::vector<Operation> IngestOperations(const WireSample& sample);
std::vector<Operation> ServerOperations(const WireSample& sample);
std::vector<Operation> ReadOperations(const WireSample& sample);
// What the client does with a response in JSON.
std::vector<Operation> TextOperations(const WireSample& sample);
// zstd level 1 of RAW blocks.
std::vector<Operation> ZstdOperations(const WireSample& sample);

// Bytes of RAW blocks over bytes of their zstd frames.
double ZstdRatio(const WireSample& sample);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_WIRE_OPERATION_H_
