// What all operations are made with.
#ifndef TESTS_BENCH_WIRE_OPERATION_SUPPORT_H_
#define TESTS_BENCH_WIRE_OPERATION_SUPPORT_H_

#include <cstring>
#include <memory>
#include <utility>

#include "tests/bench/wire/operation.h"

namespace routing_replay::bench {

// An operation whose output is a buffer of its own. `run` and `collect` get the buffer's bytes.
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

// The first `count` values as bytes.
template <typename T>
absl::Span<const uint8_t> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_WIRE_OPERATION_SUPPORT_H_
