#include "proto/json/wire_json.h"

#include <array>
#include <utility>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr std::array<std::pair<const char*, DType>, 6> kDTypes = {{{"U8", DType::kU8},
                                                                   {"I8", DType::kI8},
                                                                   {"U16", DType::kU16},
                                                                   {"I16", DType::kI16},
                                                                   {"I32", DType::kI32},
                                                                   {"I64", DType::kI64}}};

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
  object.Read("dtype", {kDTypes.begin(), kDTypes.end()}, tensor.dtype);
  object.Read("shape", tensor.shape);
  object.Read("layer_basis",
              {{"ALL_LAYERS", LayerBasis::kAllLayers},
               {"MOE_LAYERS", LayerBasis::kMoeLayers},
               {"EXPLICIT", LayerBasis::kExplicit}},
              tensor.layer_basis);
  object.Read("layer_ids", tensor.layer_ids);
}

// [begin, end]
absl::Status ReadTake(JsonObject& object, std::optional<RowRange>& take) {
  std::vector<int64_t> ends;
  object.Read("take", ends);
  if (object.Find("take") == nullptr || !object.status().ok()) return absl::OkStatus();
  if (ends.size() != 2) return Invalid(object.PathOf("take"), "is not [begin, end]");
  take = RowRange{ends[0], ends[1]};
  return absl::OkStatus();
}

}  // namespace

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

const char* DTypeName(DType dtype) {
  for (const auto& [name, known] : kDTypes) {
    if (dtype == known) return name;
  }
  return "";
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

absl::StatusOr<TakenTensor> TakenTensorFromJson(absl::string_view text) {
  const auto value = ParseJson(text, "append.tensor");
  if (!value.ok()) return value.status();
  TakenTensor tensor;
  JsonObject object(*value, "append.tensor");
  ReadTensor(object, tensor.description);
  object.Read("ids_and_weights", tensor.ids_and_weights);
  absl::Status status = ReadTake(object, tensor.take);
  status.Update(object.status());
  if (!status.ok()) return status;
  return tensor;
}

}  // namespace wire
}  // namespace routing_replay
