// Dtype names of engines.
#ifndef TESTS_GOLDEN_KINDS_DTYPE_NAMED_H_
#define TESTS_GOLDEN_KINDS_DTYPE_NAMED_H_

#include <string>
#include <utility>

#include "routing_replay/wire/tensor.h"

namespace routing_replay::golden {

// kUnspecified for an unknown name.
inline DType DTypeNamed(const std::string& name) {
  static constexpr std::pair<const char*, DType> kNames[] = {{"uint8", DType::kU8},   {"int8", DType::kI8},
                                                             {"uint16", DType::kU16}, {"int16", DType::kI16},
                                                             {"int32", DType::kI32},  {"int64", DType::kI64}};
  for (const auto& [known, dtype] : kNames) {
    if (name == known) return dtype;
  }
  return DType::kUnspecified;
}

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KINDS_DTYPE_NAMED_H_
