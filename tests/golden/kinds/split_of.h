// The layer split and the MoE pattern of a case.
#ifndef TESTS_GOLDEN_KINDS_SPLIT_OF_H_
#define TESTS_GOLDEN_KINDS_SPLIT_OF_H_

#include <optional>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/wire/geometry.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {

// The value as an int, or `fallback` for null.
inline int32_t IntOr(const Json& json, int32_t fallback) { return json.is_null() ? fallback : json.get<int32_t>(); }
inline std::optional<int32_t> OptionalInt(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional<int32_t>(json.get<int32_t>());
}

// Parses a layout given as text or as a list.
absl::StatusOr<trainer::PipelineLayout> LayoutOf(const Json& json);

// Builds the layer table of a case. MegatronTable reads the field names of megatron/layers*.json, FrameworkTable those
// of frameworks/layers_*.json.
absl::StatusOr<trainer::LayerTable> MegatronTable(const Json& input);
absl::StatusOr<trainer::LayerTable> FrameworkTable(const Json& input);

// A model of `layers` layers. The second argument is N (every N-th layer is a MoE layer), or a list of flags (1: a MoE
// layer).
absl::StatusOr<Geometry> GeometryOf(int32_t layers, const Json& step_or_flags);

// The first difference between a table and [offset, count] of every chunk; "" if there is none.
std::string OffsetsDiffer(const trainer::LayerTable& table, const Json& offset_count);
// The first difference between a table and the MTP layers of every chunk; "" if there is none.
std::string MtpDiffers(const trainer::LayerTable& table, const Json& mtp_count);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KINDS_SPLIT_OF_H_
