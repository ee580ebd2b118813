#include "client/capi/values.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/capi/error.h"
#include "proto/capi/record_json.h"
#include "proto/json/geometry_json.h"
#include "proto/json/json_object.h"
#include "proto/json/status_json.h"
#include "proto/json/wire_json.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::capi {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

using nlohmann::json;

// A server of this major version that stores in a way which came after this client.
absl::Status UnknownCodec(int32_t codec, const std::string& server_version) {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("codec: ", codec, " of a server of version ", server_version,
                                " is not known to a client of version ", ROUTING_REPLAY_VERSION),
                   {.reason = Reason::kVersionMismatch,
                    .field = "codec",
                    .server_version = server_version,
                    .client_version = ROUTING_REPLAY_VERSION});
}

absl::Status ReadPrefix(const json& value, AppendOptions& options) {
  JsonObject prefix(value, "append.prefix");
  for (const char* key : {"sample", "rows"}) prefix.Require(key);
  prefix.Read("sample", options.prefix_sample);
  prefix.Read("rows", options.prefix_rows);
  prefix.Read("revision", options.prefix_revision);
  return prefix.status();
}

absl::StatusOr<SampleRead> SampleReadFrom(const json& value, const std::string& path) {
  SampleRead sample;
  JsonObject object(value, path);
  object.Read("sample", sample.sample);
  object.Read("handle", sample.handle);
  object.Read("num_tokens", sample.num_tokens);
  object.Read("min_weight_version", sample.min_weight_version);
  object.Read("max_weight_version", sample.max_weight_version);
  absl::Status status = ReadRanges(object, "rows", sample.rows);
  status.Update(ReadTokenChecks(object, "token_checks", sample.token_checks));
  status.Update(object.status());
  if (!status.ok()) return status;
  return sample;
}

absl::StatusOr<SampleState> StateFrom(const json& value, const std::string& path) {
  SampleState state;
  JsonObject object(value, path);
  object.Require("sample");
  object.Read("sample", state.sample);
  ReadProducer(object, state.producer);
  object.Read("group", state.group);
  object.Read("committed_rows", state.committed_rows);
  object.Read("num_tokens", state.num_tokens);
  object.Read("revision", state.revision);
  object.Read("content_id", state.content_id);
  object.Read("awaits_checkpoint", state.awaits_checkpoint);
  const json* weights = object.Find("weights");
  const json* check = object.Find("token_check");
  std::vector<TokenCheck> checks;
  absl::Status status = ReadRanges(object, "unrecorded", state.unrecorded);
  if (check != nullptr && !check->is_null()) {
    const json wrapped = {{"token_check", json::array({*check})}};
    JsonObject reader(wrapped, path);
    status = ReadTokenChecks(reader, "token_check", checks);
  }
  if (weights != nullptr) status.Update(ReadWeights(*weights, state.weights));
  status.Update(object.status());
  if (!status.ok()) return status;
  if (!checks.empty()) state.token_check = checks[0];
  return state;
}

}  // namespace

absl::Status ReadWeights(const json& list, std::vector<WeightSpan>& weights) {
  if (!list.is_array()) return Invalid(Reason::kField, "append.weights", "is not a list");
  for (const json& item : list) {
    const bool good = item.is_array() && item.size() == 4 && item[0].is_number_integer() &&
                      item[1].is_number_integer() && item[2].is_number_integer() && item[3].is_string();
    if (!good) return Invalid(Reason::kField, "append.weights", "is not a list of [begin, end, version, label]");
    weights.push_back({{item[0].get<int64_t>(), item[1].get<int64_t>()}, item[2].get<int64_t>(), item[3]});
  }
  return absl::OkStatus();
}

absl::StatusOr<Geometry> GeometryFrom(absl::string_view text) {
  const auto value = ParseJson(text, "geometry");
  if (!value.ok()) return value.status();
  const auto options = GeometryOptionsFromJson(*value, "geometry");
  if (!options.ok()) return options.status();
  return Geometry::Create(*options);
}

absl::StatusOr<RunInfo> RunFrom(absl::string_view text) {
  const auto value = ParseJson(text, "run");
  if (!value.ok()) return value.status();
  std::string name, version;
  int32_t block_rows = 0, codec = 0;
  uint64_t max_message_bytes = 0, max_payload_bytes = 0;
  JsonObject object(*value, "");
  for (const char* key : {"run", "geometry"}) object.Require(key);
  object.Read("run", name);
  object.Read("server_version", version);
  object.Read("block_rows", block_rows);
  object.Read("codec", codec);
  object.Read("max_message_bytes", max_message_bytes);
  object.Read("max_payload_bytes", max_payload_bytes);
  const json* geometry_json = object.Find("geometry");
  absl::Status status = object.status();
  status.Update(CheckServerVersion(version));
  if (!status.ok()) return status;
  const auto options = GeometryOptionsFromJson(*geometry_json, "geometry");
  if (!options.ok()) return options.status();
  auto geometry = Geometry::Create(*options);
  if (!geometry.ok()) return geometry.status();
  if (codec < 0 || codec > static_cast<int32_t>(Codec::kPacked)) return UnknownCodec(codec, version);
  if (block_rows < 0 || block_rows > kMaxBlockRows) return Invalid(Reason::kField, "block_rows", "is out of range");
  const Codec chosen = codec == 0 ? geometry->default_codec() : static_cast<Codec>(codec);
  return RunInfo{.name = std::move(name),
                 .geometry = *std::move(geometry),
                 .block_rows = block_rows == 0 ? kDefaultBlockRows : block_rows,
                 .codec = chosen,
                 .limits = LimitsFrom(max_message_bytes, max_payload_bytes)};
}

absl::StatusOr<AppendOptions> AppendOptionsFrom(absl::string_view text) {
  const auto value = ParseJson(text, "append");
  if (!value.ok()) return value.status();
  AppendOptions options;
  JsonObject object(*value, "append");
  object.Require("sample");
  object.Read("sample", options.sample);
  ReadProducer(object, options.producer);
  object.Read("row_start", options.row_start);
  object.Read("revision", options.revision);
  object.Read("restart_nonce", options.restart_nonce);
  object.Read("group", options.group);
  object.Read("weight_version", options.weight_version);
  object.Read("weight_label", options.weight_label);
  object.Read("seal_num_tokens", options.seal_num_tokens);
  object.Read("seal", options.seal);
  object.Read("engine", options.engine);
  object.Read("surplus_rows", options.surplus_rows);
  absl::Status status = ReadRanges(object, "unrecorded", options.unrecorded);
  if (const json* prefix = object.Find("prefix")) status.Update(ReadPrefix(*prefix, options));
  if (const json* weights = object.Find("weights")) status.Update(ReadWeights(*weights, options.weights));
  status.Update(object.status());
  if (!status.ok()) return status;
  return options;
}

absl::StatusOr<ReadRequest> ReadRequestFrom(absl::string_view text) {
  const auto value = ParseJson(text, "read");
  if (!value.ok()) return value.status();
  ReadRequest request;
  JsonObject object(*value, "");
  object.Require("samples");
  ReadProducer(object, request.producer);
  object.Read("layers", request.layers);
  object.Read("wait", request.wait);
  object.Read("only_begun", request.only_begun);
  object.Read("max_message_bytes", request.max_message_bytes);
  const json* samples = object.Find("samples");
  if (absl::Status status = object.status(); !status.ok()) return status;
  if (object.Find("layers") != nullptr && request.layers.empty()) {
    return Invalid(Reason::kField, "layers", "is empty; leave it out to read all MoE layers");
  }
  if (!samples->is_array()) return Invalid(Reason::kField, "samples", "is not a list");
  for (const json& item : *samples) {
    auto sample = SampleReadFrom(item, absl::StrCat("samples[", request.samples.size(), "]"));
    if (!sample.ok()) return sample.status();
    request.samples.push_back(*std::move(sample));
  }
  return request;
}

absl::StatusOr<std::vector<SampleState>> StatesFrom(absl::string_view text) {
  const auto value = ParseJson(text, "states");
  if (!value.ok()) return value.status();
  if (!value->is_array()) return Invalid(Reason::kField, "states", "is not a list");
  std::vector<SampleState> states;
  for (const json& item : *value) {
    auto state = StateFrom(item, absl::StrCat("states[", states.size(), "]"));
    if (!state.ok()) return state.status();
    states.push_back(*std::move(state));
  }
  return states;
}

absl::StatusOr<ModelConfig> ModelConfigFrom(absl::string_view json, absl::string_view source) {
  if (source == "huggingface") return ModelConfigFromHuggingFace(json);
  if (source == "megatron") return ModelConfigFromMegatron(json);
  return Invalid(Reason::kField, "source", absl::StrCat("\"", source, "\" is neither huggingface nor megatron"));
}

absl::StatusOr<Codec> CodecFrom(absl::string_view name) {
  for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
    if (name == CodecName(codec)) return codec;
  }
  return Invalid(Reason::kField, "codec", absl::StrCat("\"", name, "\" is neither RAW nor PACKED"));
}

json ToJson(const AppendOutcome& outcome) {
  json out = {{"sample", outcome.sample},
              {"committed_rows", outcome.committed_rows},
              {"revision", outcome.revision},
              {"content_id", outcome.content_id},
              {"sealed", outcome.sealed},
              {"trimmed_rows", outcome.trimmed_rows},
              {"conflicting_rows", outcome.conflicting_rows},
              {"late_rows", outcome.late_rows},
              {"unrecorded_rows", outcome.unrecorded_rows},
              {"unverified_rows", outcome.unverified_rows}};
  if (!outcome.status.ok()) out["error"] = StatusToJson(outcome.status);
  return out;
}

json ToJson(const AppenderMetrics& metrics) {
  json out = {{"appends", metrics.appends},
              {"acknowledged", metrics.acknowledged},
              {"failed", metrics.failed},
              {"rows", metrics.rows},
              {"trimmed_rows", metrics.trimmed_rows},
              {"conflicting_rows", metrics.conflicting_rows},
              {"unrecorded_rows", metrics.unrecorded_rows},
              {"payload_bytes", metrics.payload_bytes},
              {"resent_bytes", metrics.resent_bytes},
              {"reconnects", metrics.reconnects},
              {"credit_refusals", metrics.credit_refusals},
              {"dropped_appends", metrics.dropped_appends},
              {"dropped_rows", metrics.dropped_rows},
              {"refused_appends", metrics.refused_appends},
              {"narrowed_appends", metrics.narrowed_appends},
              {"unrecorded_appends", metrics.unrecorded_appends},
              {"surplus_rows", metrics.surplus_rows}};
  for (const auto& [reason, count] : metrics.refused_by_reason) {
    out[absl::StrCat("refused_", absl::AsciiStrToLower(ReasonName(reason)))] = count;
  }
  return out;
}

json ToJson(const SamplePlanes& sample) {
  json out = ToJson(sample.record);
  out["rows"] = RangesToJson(sample.rows);
  return out;
}

}  // namespace routing_replay::capi
