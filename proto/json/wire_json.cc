#include "proto/json/wire_json.h"

#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

void Set(nlohmann::json& json, const char* key, const std::string& value) {
  if (!value.empty()) json[key] = value;
}

template <typename Int>
void Set(nlohmann::json& json, const char* key, const std::optional<Int>& value) {
  if (value) json[key] = *value;
}

// A list of pairs of integers; leaves `pairs` alone if the field is absent.
absl::Status ReadPairs(JsonObject& object, const char* key, std::vector<std::pair<int64_t, int64_t>>& pairs) {
  const nlohmann::json* list = object.Find(key);
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) return Invalid(object.PathOf(key), "is not a list");
  for (const nlohmann::json& item : *list) {
    const nlohmann::json wrapped = {{"pair", item}};
    JsonObject reader(wrapped, object.PathOf(key));
    std::vector<int64_t> pair;
    reader.Read("pair", pair);
    if (!reader.status().ok() || pair.size() != 2) {
      return Invalid(object.PathOf(key), "is not a list of pairs of 64-bit integers");
    }
    pairs.emplace_back(pair[0], pair[1]);
  }
  return absl::OkStatus();
}

void ReadTensor(JsonObject& object, TensorDescription& tensor) {
  object.Read("encoding",
              {{"RAW", Encoding::kRaw},
               {"NPY", Encoding::kNpy},
               {"BASE64", Encoding::kBase64},
               {"BASE64_NPY", Encoding::kBase64Npy}},
              tensor.encoding);
  object.Read("compression", {{"NONE", Compression::kNone}, {"ZSTD", Compression::kZstd}}, tensor.compression);
  object.Read("raw_size", tensor.raw_size);
  object.Read("dtype",
              {{"U8", DType::kU8},
               {"I8", DType::kI8},
               {"U16", DType::kU16},
               {"I16", DType::kI16},
               {"I32", DType::kI32},
               {"I64", DType::kI64}},
              tensor.dtype);
  object.Read("shape", tensor.shape);
  object.Read("layer_basis",
              {{"ALL_LAYERS", LayerBasis::kAllLayers},
               {"MOE_LAYERS", LayerBasis::kMoeLayers},
               {"EXPLICIT", LayerBasis::kExplicit}},
              tensor.layer_basis);
  object.Read("layer_ids", tensor.layer_ids);
}

}  // namespace

absl::StatusOr<Geometry::Options> GeometryOptionsFromJson(const nlohmann::json& json, absl::string_view path) {
  Geometry::Options options;
  JsonObject object(json, path);
  for (const char* key : {"num_layers", "num_experts", "top_k"}) object.Require(key);
  object.Read("num_layers", options.num_layers);
  object.ReadOneOrMany("num_experts", options.num_experts);
  object.ReadOneOrMany("top_k", options.top_k);
  if (object.Find("moe_layers") != nullptr) {
    object.Read("moe_layers", options.moe_layer_ids);
  } else if (options.num_layers > 0 && options.num_layers <= kMaxLayers) {
    options.moe_layer_ids.resize(options.num_layers);
    std::iota(options.moe_layer_ids.begin(), options.moe_layer_ids.end(), 0);
  }
  if (absl::Status status = object.status(); !status.ok()) return status;
  return options;
}

nlohmann::json GeometryToJson(const Geometry& geometry) {
  nlohmann::json layers = nlohmann::json::array();
  nlohmann::json experts = nlohmann::json::array();
  nlohmann::json top_k = nlohmann::json::array();
  for (const LayerRouting& layer : geometry.layers()) {
    layers.push_back(layer.layer_id);
    experts.push_back(layer.num_experts);
    top_k.push_back(layer.top_k);
  }
  if (geometry.uniform()) {
    experts = experts[0];
    top_k = top_k[0];
  }
  return {{"num_layers", geometry.num_layers()},
          {"moe_layers", std::move(layers)},
          {"num_experts", std::move(experts)},
          {"top_k", std::move(top_k)}};
}

nlohmann::json RangesToJson(absl::Span<const RowRange> ranges) {
  nlohmann::json json = nlohmann::json::array();
  for (const RowRange range : ranges) json.push_back({range.begin, range.end});
  return json;
}

nlohmann::json StatusToJson(const absl::Status& status) {
  nlohmann::json json = {{"code", static_cast<int>(status.code())},
                         {"code_name", absl::StatusCodeToString(status.code())},
                         {"message", std::string(status.message())}};
  const std::optional<ErrorDetail> detail = GetErrorDetail(status);
  if (!detail) return json;
  if (detail->reason != Reason::kUnspecified) json["reason"] = ReasonName(detail->reason);
  Set(json, "field", detail->field);
  Set(json, "sample", detail->sample);
  Set(json, "row", detail->row);
  Set(json, "layer", detail->layer);
  Set(json, "committed_rows", detail->committed_rows);
  Set(json, "revision", detail->revision);
  Set(json, "first_differing_block", detail->first_differing_block);
  if (!detail->missing_rows.empty()) json["missing_rows"] = RangesToJson(detail->missing_rows);
  Set(json, "retry_after_ms", detail->retry_after_ms);
  return json;
}

absl::Status ReadRanges(JsonObject& object, const char* key, std::vector<RowRange>& ranges) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  absl::Status status = ReadPairs(object, key, pairs);
  for (const auto& [begin, end] : pairs) ranges.push_back({begin, end});
  return status;
}

absl::Status ReadTokenChecks(JsonObject& object, const char* key, std::vector<TokenCheck>& checks) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  if (absl::Status status = ReadPairs(object, key, pairs); !status.ok()) return status;
  for (const auto& [rows, crc] : pairs) {
    if (crc < 0 || crc > int64_t{UINT32_MAX}) return Invalid(object.PathOf(key), "has a CRC that is not of 32 bits");
    checks.push_back({rows, static_cast<uint32_t>(crc)});
  }
  return absl::OkStatus();
}

void ReadProducer(JsonObject& object, Producer& producer) {
  object.Read(
      "producer",
      {{ProducerName(Producer::kRollout), Producer::kRollout}, {ProducerName(Producer::kTrainer), Producer::kTrainer}},
      producer);
}

absl::StatusOr<TensorDescription> TensorFromJson(absl::string_view text, absl::string_view path) {
  const auto value = ParseJson(text, path);
  if (!value.ok()) return value.status();
  TensorDescription tensor;
  JsonObject object(*value, path);
  ReadTensor(object, tensor);
  if (absl::Status status = object.status(); !status.ok()) return status;
  return tensor;
}

}  // namespace wire
}  // namespace routing_replay
