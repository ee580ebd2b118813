#include "proto/convert/convert.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

absl::Status FieldError(absl::string_view field, absl::string_view message,
                        absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  return MakeError(code, absl::StrCat(field, ": ", message), {.reason = Reason::kField, .field = std::string(field)});
}

template <typename Repeated>
absl::StatusOr<std::vector<int32_t>> Int32s(const Repeated& values, int32_t maximum, absl::string_view field) {
  std::vector<int32_t> out;
  out.reserve(values.size());
  for (const uint32_t value : values) {
    if (value > static_cast<uint32_t>(maximum)) {
      return FieldError(field, absl::StrCat(value, " is above ", maximum));
    }
    out.push_back(static_cast<int32_t>(value));
  }
  return out;
}

}  // namespace

absl::StatusOr<int64_t> CountFromProto(uint64_t value, int64_t maximum, absl::string_view field) {
  if (value <= static_cast<uint64_t>(maximum)) return static_cast<int64_t>(value);
  return FieldError(field, absl::StrCat(value, " is above ", maximum));
}

v1::RoutingGeometry ToProto(const Geometry& geometry) {
  v1::RoutingGeometry out;
  out.set_num_layers(geometry.num_layers());
  const auto layers = geometry.layers();
  for (const LayerRouting& layer : layers) out.add_moe_layer_ids(layer.layer_id);
  const size_t values = geometry.uniform() ? 1 : layers.size();
  for (size_t i = 0; i < values; ++i) {
    out.add_num_experts(layers[i].num_experts);
    out.add_top_k(layers[i].top_k);
  }
  out.set_order_policy(v1::ORDER_POLICY_EXACT);
  return out;
}

absl::StatusOr<Geometry> FromProto(const v1::RoutingGeometry& geometry) {
  if (geometry.order_policy() == v1::ORDER_POLICY_SET) {
    return FieldError("geometry.order_policy", "order policy SET is reserved and not implemented",
                      absl::StatusCode::kUnimplemented);
  }
  if (geometry.order_policy() > v1::ORDER_POLICY_SET || geometry.order_policy() < 0) {
    return FieldError("geometry.order_policy", absl::StrCat("unknown value ", geometry.order_policy()));
  }
  const auto num_layers = CountFromProto(geometry.num_layers(), kMaxLayers, "geometry.num_layers");
  auto ids = Int32s(geometry.moe_layer_ids(), kMaxLayers, "geometry.moe_layer_ids");
  auto experts = Int32s(geometry.num_experts(), kMaxExperts, "geometry.num_experts");
  auto top_k = Int32s(geometry.top_k(), kMaxExperts, "geometry.top_k");
  for (const absl::Status& status : {num_layers.status(), ids.status(), experts.status(), top_k.status()}) {
    if (!status.ok()) return status;
  }
  return Geometry::Create({.num_layers = static_cast<int32_t>(*num_layers),
                           .moe_layer_ids = *std::move(ids),
                           .num_experts = *std::move(experts),
                           .top_k = *std::move(top_k)});
}

v1::Producer ToProto(Producer producer) { return static_cast<v1::Producer>(producer); }

absl::StatusOr<Producer> FromProto(v1::Producer producer, absl::string_view field) {
  switch (producer) {
    case v1::PRODUCER_UNSPECIFIED:
    case v1::PRODUCER_ROLLOUT:
      return Producer::kRollout;
    case v1::PRODUCER_TRAINER:
      return Producer::kTrainer;
    default:
      return FieldError(field, absl::StrCat("unknown producer ", static_cast<int>(producer)));
  }
}

v1::Codec ToProto(std::optional<Codec> codec) { return codec ? static_cast<v1::Codec>(*codec) : v1::CODEC_UNSPECIFIED; }

absl::StatusOr<std::optional<Codec>> FromProto(v1::Codec codec, absl::string_view field) {
  switch (codec) {
    case v1::CODEC_UNSPECIFIED:
      return std::optional<Codec>();
    case v1::CODEC_RAW:
      return std::optional<Codec>(Codec::kRaw);
    case v1::CODEC_PACKED:
      return std::optional<Codec>(Codec::kPacked);
    case v1::CODEC_ZSTD:
      return FieldError(field, "codec ZSTD is reserved and not implemented", absl::StatusCode::kUnimplemented);
    default:
      return FieldError(field, absl::StrCat("unknown codec ", static_cast<int>(codec)));
  }
}

v1::Durability ToProto(std::optional<Durability> durability) {
  return durability ? static_cast<v1::Durability>(*durability) : v1::DURABILITY_UNSPECIFIED;
}

absl::StatusOr<std::optional<Durability>> FromProto(v1::Durability durability, absl::string_view field) {
  switch (durability) {
    case v1::DURABILITY_UNSPECIFIED:
      return std::optional<Durability>();
    case v1::DURABILITY_MEMORY:
    case v1::DURABILITY_WRITTEN:
    case v1::DURABILITY_SYNCED:
      return std::optional<Durability>(static_cast<Durability>(durability));
    default:
      return FieldError(field, absl::StrCat("unknown durability ", static_cast<int>(durability)));
  }
}

v1::RowRange ToProto(RowRange range) {
  v1::RowRange out;
  out.set_begin(range.begin);
  out.set_end(range.end);
  return out;
}

absl::StatusOr<RowRange> FromProto(const v1::RowRange& range, absl::string_view field) {
  if (range.begin() > range.end() || range.end() > static_cast<uint64_t>(kMaxRows)) {
    return FieldError(field, absl::StrCat("[", range.begin(), ", ", range.end(), ") is not a range of rows"));
  }
  return RowRange{static_cast<int64_t>(range.begin()), static_cast<int64_t>(range.end())};
}

v1::WeightSpan ToProto(const WeightSpan& span) {
  v1::WeightSpan out;
  *out.mutable_rows() = ToProto(span.rows);
  out.set_version(span.version);
  out.set_label(span.label);
  return out;
}

absl::StatusOr<WeightSpan> FromProto(const v1::WeightSpan& span, absl::string_view field) {
  const absl::StatusOr<RowRange> rows = FromProto(span.rows(), field);
  if (!rows.ok()) return rows.status();
  return WeightSpan{*rows, span.version(), span.label()};
}

v1::Provenance ToProto(const Provenance& from) {
  v1::Provenance out;
  *out.mutable_rows() = ToProto(from.rows);
  out.set_weight_version(from.weight_version);
  out.set_weight_label(from.weight_label);
  out.set_engine(from.engine);
  out.set_appends(from.appends);
  return out;
}

absl::StatusOr<Provenance> FromProto(const v1::Provenance& from, absl::string_view field) {
  const absl::StatusOr<RowRange> rows = FromProto(from.rows(), field);
  const auto appends = CountFromProto(from.appends(), kMaxInt64, absl::StrCat(field, ".appends"));
  if (!rows.ok()) return rows.status();
  if (!appends.ok()) return appends.status();
  return Provenance{*rows, from.weight_version(), from.weight_label(), from.engine(), *appends};
}

v1::SampleState ToProto(const SampleState& state) {
  v1::SampleState out;
  out.set_sample(state.sample);
  out.set_handle(state.handle);
  out.set_producer(ToProto(state.producer));
  out.set_group(state.group);
  out.set_committed_rows(state.committed_rows);
  if (state.num_tokens) out.set_num_tokens(*state.num_tokens);
  out.set_revision(state.revision);
  out.set_content_id(state.content_id);
  for (const RowRange range : state.unrecorded) *out.add_unrecorded() = ToProto(range);
  for (const WeightSpan& span : state.weights) *out.add_weights() = ToProto(span);
  out.set_stored_bytes(state.stored_bytes);
  if (state.token_check) {
    v1::TokenCheck& check = *out.add_token_checks();
    check.set_rows(state.token_check->rows);
    check.set_crc32c(state.token_check->crc32c);
  }
  out.set_engine(state.engine);
  out.set_idle_ms(state.idle_ms);
  for (const Provenance& from : state.provenance) *out.add_provenance() = ToProto(from);
  out.set_lost_end(state.lost_end);
  return out;
}

absl::StatusOr<SampleState> FromProto(const v1::SampleState& state) {
  const auto producer = FromProto(state.producer(), "producer");
  const auto committed = CountFromProto(state.committed_rows(), kMaxRows, "committed_rows");
  const auto num_tokens = CountFromProto(state.num_tokens(), kMaxRows + 1, "num_tokens");
  const auto revision = CountFromProto(state.revision(), kMaxInt64, "revision");
  const auto stored_bytes = CountFromProto(state.stored_bytes(), kMaxInt64, "stored_bytes");
  const auto lost_end = CountFromProto(state.lost_end(), kMaxRows, "lost_end");
  for (const absl::Status& status : {producer.status(), committed.status(), num_tokens.status(), revision.status(),
                                     stored_bytes.status(), lost_end.status()}) {
    if (!status.ok()) return status;
  }
  SampleState out{.sample = state.sample(),
                  .handle = state.handle(),
                  .producer = *producer,
                  .group = state.group(),
                  .committed_rows = *committed,
                  .revision = *revision,
                  .content_id = state.content_id(),
                  .stored_bytes = *stored_bytes,
                  .engine = state.engine(),
                  .idle_ms = state.idle_ms(),
                  .lost_end = *lost_end};
  if (state.has_num_tokens()) out.num_tokens = *num_tokens;
  for (const v1::RowRange& range : state.unrecorded()) {
    const auto rows = FromProto(range, "unrecorded");
    if (!rows.ok()) return rows.status();
    out.unrecorded.push_back(*rows);
  }
  for (const v1::WeightSpan& span : state.weights()) {
    auto weights = FromProto(span, "weights");
    if (!weights.ok()) return weights.status();
    out.weights.push_back(*std::move(weights));
  }
  for (const v1::Provenance& from : state.provenance()) {
    auto provenance = FromProto(from, "provenance");
    if (!provenance.ok()) return provenance.status();
    out.provenance.push_back(*std::move(provenance));
  }
  if (state.token_checks_size() > 0) {
    const v1::TokenCheck& last = state.token_checks(state.token_checks_size() - 1);
    const auto rows = CountFromProto(last.rows(), kMaxRows + 1, "token_checks.rows");
    if (!rows.ok()) return rows.status();
    out.token_check = TokenCheck{*rows, last.crc32c()};
  }
  return out;
}

}  // namespace wire
}  // namespace routing_replay
