#include "proto/wire/message/message_fields.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

namespace routing_replay {
inline namespace wire {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Counts fields from here to the stream's limit; returns false if some could not be read.
bool CountHere(CodedInputStream& stream, absl::Span<const int> path, size_t* counts) {
  while (const uint32_t tag = stream.ReadTag()) {
    const bool on_path = WireFormatLite::GetTagFieldNumber(tag) == path.front();
    if (on_path) ++counts[0];
    uint32_t size = 0;
    const bool descend =
        on_path && path.size() > 1 && WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (!descend) {
      if (!WireFormatLite::SkipField(&stream, tag)) return false;
    } else {
      if (!stream.ReadVarint32(&size)) return false;
      const auto limit = stream.PushLimit(static_cast<int>(size));
      if (!CountHere(stream, path.subspan(1), counts + 1) || stream.BytesUntilLimit() != 0) return false;
      stream.PopLimit(limit);
    }
  }
  return true;
}

}  // namespace

std::string FieldPath::ToString() const {
  std::string out = parent == nullptr ? "" : parent->ToString();
  if (name[0] != '\0') absl::StrAppend(&out, out.empty() ? "" : ".", name);
  if (index) absl::StrAppend(&out, "[", *index, "]");
  return out;
}

absl::Status MalformedMessage() {
  return MakeError(absl::StatusCode::kInvalidArgument, "malformed message", {.reason = Reason::kEncoding});
}

void CountFields(absl::string_view message, absl::Span<const int> path, size_t* counts) {
  CodedInputStream stream(reinterpret_cast<const uint8_t*>(message.data()), static_cast<int>(message.size()));
  CountHere(stream, path, counts);
}

int64_t MessageFields::Count(const char* name, uint64_t value, int64_t maximum, int64_t minimum) {
  if (value <= static_cast<uint64_t>(maximum) && value >= static_cast<uint64_t>(minimum)) {
    return static_cast<int64_t>(value);
  }
  FailField(name, absl::StrCat(value, " is not in [", minimum, ", ", maximum, "]"));
  return minimum;
}

Producer MessageFields::ReadProducer(const char* name, v1::Producer value) {
  return Known<Producer>(name, value, Producer::kTrainer, Producer::kRollout);
}

Codec MessageFields::ReadCodec(const char* name, v1::Codec value) {
  return Known<Codec>(name, value, Codec::kPacked, std::nullopt);
}

std::optional<Codec> MessageFields::ReadAnyCodec(const char* name, v1::Codec value) {
  return value == v1::CODEC_UNSPECIFIED ? std::nullopt : std::optional<Codec>(ReadCodec(name, value));
}

std::optional<Durability> MessageFields::ReadAnyDurability(const char* name, v1::Durability value) {
  if (value == v1::DURABILITY_UNSPECIFIED) return std::nullopt;
  return Known<Durability>(name, value, Durability::kSynced, std::nullopt);
}

void MessageFields::FailField(const char* name, absl::string_view message, Reason reason) {
  Fail(Invalid(reason, path_.Child(name).ToString(), message));
}

const std::string& MessageFields::Text(const char* name, const std::string& value, size_t max_bytes) {
  if (value.size() > max_bytes)
    FailField(name, absl::StrCat("must have at most ", max_bytes, " bytes, got ", value.size()));
  return value;
}

RowRange MessageFields::Range(const char* name, std::optional<size_t> index, const v1::RowRange& value) {
  const FieldPath path = path_.Child(name, index);
  MessageFields f(path);
  const RowRange range{static_cast<int64_t>(value.begin()), f.Count("end", value.end(), kMaxRows)};
  if (value.begin() > value.end()) f.FailField("end", "is below begin");
  Fail(f.status());
  return f.status().ok() ? range : RowRange{};
}

std::vector<RowRange> MessageFields::Ranges(const char* name,
                                            const google::protobuf::RepeatedPtrField<v1::RowRange>& values) {
  std::vector<RowRange> ranges;
  ranges.reserve(values.size());
  for (const v1::RowRange& value : values) ranges.push_back(Range(name, ranges.size(), value));
  return ranges;
}

std::vector<WeightSpan> MessageFields::Weights(const char* name,
                                               const google::protobuf::RepeatedPtrField<v1::WeightSpan>& values) {
  std::vector<WeightSpan> spans;
  for (const v1::WeightSpan& value : values) {
    const FieldPath path = path_.Child(name, spans.size());
    MessageFields f(path);
    spans.push_back({f.Range("rows", std::nullopt, value.rows()), value.version(), f.Text("label", value.label())});
    Fail(f.status());
  }
  return spans;
}

void MessageFields::CheckRanges(const char* name, absl::Span<const RowRange> ranges, RowRange bounds) {
  if (!status_.ok()) return;
  if (const absl::Status normal = CheckNormal(ranges, bounds); !normal.ok()) FailField(name, normal.message());
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
  return out;
}

absl::StatusOr<Geometry> FromProto(const v1::RoutingGeometry& geometry) {
  MessageFields f({.name = "geometry"});
  const auto numbers = [&f](const char* name, const auto& values, int64_t maximum) {
    std::vector<int32_t> out;
    for (const uint32_t value : values) out.push_back(static_cast<int32_t>(f.Count(name, value, maximum)));
    return out;
  };
  const Geometry::Options options{
      .num_layers = static_cast<int32_t>(f.Count("num_layers", geometry.num_layers(), kMaxLayers)),
      .moe_layer_ids = numbers("moe_layer_ids", geometry.moe_layer_ids(), kMaxLayers),
      .num_experts = numbers("num_experts", geometry.num_experts(), kMaxExperts),
      .top_k = numbers("top_k", geometry.top_k(), kMaxExperts)};
  if (!f.status().ok()) return f.status();
  return Geometry::Create(options);
}

v1::RowRange ToProto(RowRange range) {
  v1::RowRange out;
  out.set_begin(range.begin);
  out.set_end(range.end);
  return out;
}

v1::WeightSpan ToProto(const WeightSpan& span) {
  v1::WeightSpan out;
  *out.mutable_rows() = ToProto(span.rows);
  out.set_version(span.version);
  out.set_label(span.label);
  return out;
}

v1::TokenCheck ToProto(const TokenCheck& check) {
  v1::TokenCheck out;
  out.set_rows(check.rows);
  out.set_crc32c(check.crc32c);
  return out;
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
  if (state.token_check) *out.add_token_checks() = ToProto(*state.token_check);
  out.set_engine(state.engine);
  out.set_idle_ms(state.idle_ms);
  return out;
}

absl::StatusOr<SampleState> FromProto(const v1::SampleState& state) {
  MessageFields f;
  SampleState out{.sample = state.sample(),
                  .handle = state.handle(),
                  .producer = f.ReadProducer("producer", state.producer()),
                  .group = state.group(),
                  .committed_rows = f.Count("committed_rows", state.committed_rows(), kMaxRows),
                  .revision = f.Count("revision", state.revision()),
                  .content_id = state.content_id(),
                  .unrecorded = f.Ranges("unrecorded", state.unrecorded()),
                  .weights = f.Weights("weights", state.weights()),
                  .stored_bytes = f.Count("stored_bytes", state.stored_bytes()),
                  .engine = state.engine(),
                  .idle_ms = state.idle_ms()};
  if (state.has_num_tokens()) out.num_tokens = f.Count("num_tokens", state.num_tokens(), kMaxTokens);
  if (state.token_checks_size() > 0) {
    const v1::TokenCheck& last = state.token_checks(state.token_checks_size() - 1);
    out.token_check = TokenCheck{f.Count("token_checks.rows", last.rows(), kMaxTokens), last.crc32c()};
  }
  if (!f.status().ok()) return f.status();
  return out;
}

}  // namespace wire
}  // namespace routing_replay
