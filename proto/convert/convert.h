// C++ values ⇄ generated protobuf messages, for the calls that carry no payload. The server and the client use the
// same.
//
// FromProto functions check what they take: INVALID_ARGUMENT (kField) naming the field, UNIMPLEMENTED for numbers that
// are reserved for a later version.
#ifndef PROTO_CONVERT_CONVERT_H_
#define PROTO_CONVERT_CONVERT_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/v1/common.pb.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay {
inline namespace wire {

// A uint64 field as a count: INVALID_ARGUMENT above `maximum`.
absl::StatusOr<int64_t> CountFromProto(uint64_t value, int64_t maximum, absl::string_view field);

v1::RoutingGeometry ToProto(const Geometry& geometry);
absl::StatusOr<Geometry> FromProto(const v1::RoutingGeometry& geometry);

v1::Producer ToProto(Producer producer);
// Unspecified is the rollout engine.
absl::StatusOr<Producer> FromProto(v1::Producer producer, absl::string_view field);

v1::Codec ToProto(std::optional<Codec> codec);
// Unspecified is nothing.
absl::StatusOr<std::optional<Codec>> FromProto(v1::Codec codec, absl::string_view field);

v1::Durability ToProto(std::optional<Durability> durability);
// Unspecified is nothing.
absl::StatusOr<std::optional<Durability>> FromProto(v1::Durability durability, absl::string_view field);

v1::RowRange ToProto(RowRange range);
absl::StatusOr<RowRange> FromProto(const v1::RowRange& range, absl::string_view field);

v1::WeightSpan ToProto(const WeightSpan& span);
absl::StatusOr<WeightSpan> FromProto(const v1::WeightSpan& span, absl::string_view field);
v1::Provenance ToProto(const Provenance& from);
absl::StatusOr<Provenance> FromProto(const v1::Provenance& from, absl::string_view field);

v1::SampleState ToProto(const SampleState& state);
absl::StatusOr<SampleState> FromProto(const v1::SampleState& state);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_CONVERT_CONVERT_H_
