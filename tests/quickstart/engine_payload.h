// The tensor that a rollout engine would hand over for some rows, in each of the payload forms.
#ifndef TESTS_QUICKSTART_ENGINE_PAYLOAD_H_
#define TESTS_QUICKSTART_ENGINE_PAYLOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/tensor.h"
#include "tests/generator/routes.h"
#include "tests/quickstart/scenario.h"

namespace routing_replay::quickstart {

struct EnginePayload {
  TensorDescription tensor;
  std::string bytes;

  absl::Span<const uint8_t> span() const { return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}; }
};

// The rows of `recorded` (normal list), one after the other. NPY forms carry u8 for E <= 256, else u16.
EnginePayload MakeEnginePayload(PayloadForm form, const testing::Routes& routes, const std::vector<RowRange>& recorded);

// Bytes of the same rows as a compact JSON list of lists of lists, and as base64 of int32, for comparison.
int64_t JsonListBytes(const testing::Routes& routes, const std::vector<RowRange>& recorded);
int64_t Base64Int32Bytes(const testing::Routes& routes, const std::vector<RowRange>& recorded);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_ENGINE_PAYLOAD_H_
