#include "client/c_api/values.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "proto/wire/token_ids.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::c_api {

namespace {

template <typename Enum>
struct Named {
  const char* name;
  Enum value;
};

constexpr Named<Encoding> kEncodings[] = {{"RAW", Encoding::kRaw},
                                          {"NPY", Encoding::kNpy},
                                          {"BASE64", Encoding::kBase64},
                                          {"BASE64_NPY", Encoding::kBase64Npy}};
constexpr Named<Compression> kCompressions[] = {{"NONE", Compression::kNone}, {"ZSTD", Compression::kZstd}};
constexpr Named<DType> kDTypes[] = {{"U8", DType::kU8},   {"I8", DType::kI8},   {"U16", DType::kU16},
                                    {"I16", DType::kI16}, {"I32", DType::kI32}, {"I64", DType::kI64}};
constexpr Named<LayerBasis> kLayerBases[] = {{"ALL_LAYERS", LayerBasis::kAllLayers},
                                             {"MOE_LAYERS", LayerBasis::kMoeLayers},
                                             {"EXPLICIT", LayerBasis::kExplicit}};

// Sets `value` to the one that has this name; an empty name leaves it unchanged.
template <typename Enum, size_t count>
absl::Status Find(const Named<Enum> (&names)[count], rr_text name, absl::string_view path, const char* field,
                  Enum& value) {
  if (name.size == 0) return absl::OkStatus();
  for (const Named<Enum>& known : names) {
    if (View(name) != known.name) continue;
    value = known.value;
    return absl::OkStatus();
  }
  std::string all;
  for (const Named<Enum>& known : names) absl::StrAppend(&all, all.empty() ? "" : ", ", known.name);
  return Invalid(absl::StrCat(path, ".", field), absl::StrCat("must be one of ", all));
}

}  // namespace

absl::StatusOr<Producer> ProducerFrom(int32_t producer) {
  RR_ASSIGN_OR_RETURN(const auto known, ProducerOrBoth(producer));
  return known.value_or(Producer::kRollout);
}

absl::StatusOr<std::optional<Producer>> ProducerOrBoth(int32_t producer) {
  if (producer == 0) return std::nullopt;
  if (producer == RR_ROLLOUT) return Producer::kRollout;
  if (producer == RR_TRAINER) return Producer::kTrainer;
  return Invalid("producer", absl::StrCat(producer, " is not a producer"));
}

absl::StatusOr<std::optional<Codec>> CodecFrom(absl::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
    if (name == CodecName(codec)) return codec;
  }
  return Invalid("codec", absl::StrCat("\"", name, "\" must be RAW or PACKED"));
}

absl::StatusOr<Geometry> GeometryFrom(const rr_geometry& geometry) {
  const size_t count = geometry.count;
  return Geometry::Create({.num_layers = geometry.num_layers,
                           .moe_layer_ids = {geometry.moe_layers, geometry.moe_layers + count},
                           .num_experts = {geometry.num_experts, geometry.num_experts + count},
                           .top_k = {geometry.top_k, geometry.top_k + count}});
}

absl::StatusOr<RunSettings> SettingsFrom(const rr_run_settings& settings) {
  RR_ASSIGN_OR_RETURN(const auto codec, CodecFrom(View(settings.codec)));
  const auto durability = DurabilityFromName(View(settings.durability));
  if (!durability && settings.durability.size != 0) {
    return Invalid("durability", absl::StrCat("\"", View(settings.durability), "\" must be memory, written or synced"));
  }
  return RunSettings{.ttl = std::chrono::milliseconds(settings.ttl_ms),
                     .strict = settings.strict != 0,
                     .block_rows = settings.block_rows,
                     .codec = codec,
                     .durability = durability};
}

std::vector<RowRange> RangesFrom(rr_ranges ranges) {
  std::vector<RowRange> copy;
  copy.reserve(ranges.count);
  for (size_t i = 0; i < ranges.count; ++i) copy.push_back({ranges.data[i].begin, ranges.data[i].end});
  return copy;
}

std::vector<WeightSpan> WeightsFrom(const rr_weight_span* weights, size_t count) {
  std::vector<WeightSpan> copy;
  copy.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    copy.push_back({{weights[i].begin, weights[i].end}, weights[i].version, String(weights[i].label)});
  }
  return copy;
}

std::optional<std::pair<int64_t, int64_t>> GroupsFrom(const rr_range* groups) {
  if (groups == nullptr) return std::nullopt;
  return std::pair(groups->begin, groups->end);
}

std::vector<std::string> StringsFrom(const rr_text* texts, size_t count) {
  std::vector<std::string> copy;
  copy.reserve(count);
  for (size_t i = 0; i < count; ++i) copy.push_back(String(texts[i]));
  return copy;
}

absl::StatusOr<TensorDescription> TensorFrom(const rr_tensor& tensor, absl::string_view path) {
  TensorDescription description{.raw_size = tensor.raw_size,
                                .shape = {tensor.shape, tensor.shape + tensor.shape_count},
                                .layer_ids = {tensor.layer_ids, tensor.layer_ids + tensor.layer_count}};
  RR_RETURN_IF_ERROR(Find(kEncodings, tensor.encoding, path, "encoding", description.encoding));
  RR_RETURN_IF_ERROR(Find(kCompressions, tensor.compression, path, "compression", description.compression));
  RR_RETURN_IF_ERROR(Find(kDTypes, tensor.dtype, path, "dtype", description.dtype));
  RR_RETURN_IF_ERROR(Find(kLayerBases, tensor.layer_basis, path, "layer_basis", description.layer_basis));
  return description;
}

absl::StatusOr<std::vector<uint32_t>> TokensFrom(const rr_tokens& tokens, absl::string_view field,
                                                 absl::string_view sample) {
  std::vector<uint32_t> ids;
  if (tokens.data == nullptr) return ids;
  RR_ASSIGN_OR_RETURN(const auto narrow, TokenIds({.dtype = String(tokens.dtype),
                                                   .axes = tokens.axes,
                                                   .field = std::string(field),
                                                   .sample = std::string(sample),
                                                   .bytes = {static_cast<const uint8_t*>(tokens.data), tokens.size}}));
  ids.resize(narrow.size() / sizeof(uint32_t));
  std::memcpy(ids.data(), narrow.data(), narrow.size());
  return ids;
}

absl::StatusOr<NewAppend> AppendFrom(const rr_append& append, std::vector<uint32_t>& tokens) {
  const auto producer = ProducerFrom(append.producer);
  if (!producer.ok()) return WithSample(producer.status(), View(append.sample));
  RR_ASSIGN_OR_RETURN(tokens, TokensFrom(append.tokens, "append.token_ids", View(append.sample)));
  NewAppend given{.options = {.sample = String(append.sample),
                              .producer = *producer,
                              .row_start = append.row_start,
                              .unrecorded = RangesFrom(append.unrecorded),
                              .revision = append.revision,
                              .restart_nonce = append.restart,
                              .attempt = Optional(append.attempt),
                              .group = Optional(append.group),
                              .weight_version = append.weight_version,
                              .weight_label = String(append.weight_label),
                              .weights = WeightsFrom(append.weights, append.weights_count),
                              .token_ids = tokens,
                              .seal_num_tokens = Optional(append.num_tokens),
                              .seal = append.seal != 0,
                              .engine = String(append.engine)}};
  if (append.rows == nullptr) return given;
  auto tensor = TensorFrom(*append.rows);
  if (!tensor.ok()) return WithSample(tensor.status(), given.options.sample);
  given.tensor = *std::move(tensor);
  given.payload = PayloadOf(*append.rows);
  if (append.rows->take != nullptr) given.options.take = {append.rows->take->begin, append.rows->take->end};
  return given;
}

void Fill(const Geometry& geometry, ResultMemory& memory, rr_geometry& out) {
  const size_t count = geometry.layers().size();
  const auto ids = memory.Array<int32_t>(count), experts = memory.Array<int32_t>(count),
             top_k = memory.Array<int32_t>(count);
  for (size_t i = 0; i < count; ++i) {
    const LayerRouting& layer = geometry.layers()[i];
    ids[i] = layer.layer_id;
    experts[i] = layer.num_experts;
    top_k[i] = layer.top_k;
  }
  out = {geometry.num_layers(), ids.data(), experts.data(), top_k.data(), count};
}

void Fill(const RunSettings& settings, ResultMemory& memory, rr_run_settings& out) {
  out.ttl_ms = settings.ttl.count();
  out.strict = settings.strict ? 1 : 0;
  out.block_rows = settings.block_rows;
  if (settings.codec) out.codec = memory.Text(CodecName(*settings.codec));
  if (settings.durability) out.durability = memory.Text(DurabilityName(*settings.durability));
}

void Fill(const SampleRecord& record, ResultMemory& memory, rr_sample_rows& out) {
  out.status = memory.Text(SampleStatusName(record.status));
  out.message = memory.Text(record.message);
  out.committed_rows = record.committed_rows;
  out.revision = record.revision;
  out.content_id = record.content_id;
  out.num_tokens = Optional(record.num_tokens);
  out.unrecorded = memory.Ranges(record.unrecorded);
  out.weights = memory.Weights(record.weights);
  out.weights_count = record.weights.size();
}

rr_counters Counters(absl::Span<const std::pair<std::string, int64_t>> counters, ResultMemory& memory) {
  const auto list = memory.Array<rr_counter>(counters.size());
  for (size_t i = 0; i < list.size(); ++i) list[i] = {memory.Text(counters[i].first), counters[i].second};
  return {list.data(), list.size()};
}

namespace {

void FillState(const SampleState& state, ResultMemory& memory, rr_sample_state& out) {
  out.sample = memory.Text(state.sample);
  out.engine = memory.Text(state.engine);
  out.handle = state.handle;
  out.group = state.group;
  out.committed_rows = state.committed_rows;
  out.revision = state.revision;
  out.stored_bytes = state.stored_bytes;
  out.idle_ms = state.idle_ms;
  out.content_id = state.content_id;
  out.num_tokens = Optional(state.num_tokens);
  out.producer = static_cast<int32_t>(state.producer);
  out.has_token_check = state.token_check.has_value() ? 1 : 0;
  if (state.token_check) out.token_check = {state.token_check->rows, state.token_check->crc32c};
  out.unrecorded = memory.Ranges(state.unrecorded);
  out.weights = memory.Weights(state.weights);
  out.weights_count = state.weights.size();
}

void FillOutcome(const AppendOutcome& outcome, ResultMemory& memory, rr_outcome& out) {
  out.sample = memory.Text(outcome.sample);
  out.sequence = outcome.sequence;
  out.committed_rows = outcome.committed_rows;
  out.revision = outcome.revision;
  out.trimmed_rows = outcome.trimmed_rows;
  out.conflicting_rows = outcome.conflicting_rows;
  out.late_rows = outcome.late_rows;
  out.unrecorded_rows = outcome.unrecorded_rows;
  out.unverified_rows = outcome.unverified_rows;
  out.content_id = outcome.content_id;
  out.sealed = outcome.sealed ? 1 : 0;
  if (outcome.status.ok()) return;
  rr_error& error = memory.Array<rr_error>(1)[0];
  FillError(outcome.status, memory, error);
  out.error = &error;
}

}  // namespace

rr_sample_states* NewStates(absl::Span<const SampleState> states) {
  return NewList<rr_sample_states>(states, FillState);
}

rr_outcomes* NewOutcomes(absl::Span<const AppendOutcome> outcomes) {
  return NewList<rr_outcomes>(outcomes, FillOutcome);
}

}  // namespace routing_replay::c_api
