// Helpers to make operations.
#ifndef TESTS_BENCH_WIRE_OPERATION_SUPPORT_H_
#define TESTS_BENCH_WIRE_OPERATION_SUPPORT_H_

#include <cstring>
#include <memory>
#include <utility>

#include "tests/bench/wire/operation.h"

namespace routing_replay::bench {

// An operation that owns its output buffer. `run` and `collect` get a pointer to the buffer.
inline Operation MakeOperation(const WireSample& sample, const std::string& name, absl::Span<const uint8_t> input,
                               absl::Span<const uint8_t> expected, const std::function<void(uint8_t* out)>& run,
                               const std::function<void(uint8_t* out)>& collect = nullptr) {
  const auto output = std::make_shared<Buffer>(expected.size());
  Operation operation{
      .name = sample.model() + "." + name, .input = input, .output = output->span(), .expected = expected};
  operation.run = [run, output] { run(output->data()); };
  if (collect) operation.collect = [collect, output] { collect(output->data()); };
  return operation;
}

// The bytes of `values`.
template <typename T>
absl::Span<const uint8_t> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_WIRE_OPERATION_SUPPORT_H_
