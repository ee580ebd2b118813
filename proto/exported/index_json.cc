#include "proto/exported/index_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/json/json_object.h"
#include "proto/json/wire_json.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

using nlohmann::json;

constexpr int64_t kVersion = 2;
constexpr int64_t kMostHeaderBytes = 4096;  // Of a .npy file.

json ToJson(const ExportedSample& sample) {
  json weights = json::array(), checks = json::array();
  for (const WeightSpan& span : sample.weights) {
    weights.push_back({span.rows.begin, span.rows.end, span.version, span.label});
  }
  for (const TokenCheck& check : sample.token_checks) checks.push_back({check.rows, check.crc32c});
  return {{"sample", sample.sample},
          {"group", sample.group},
          {"num_tokens", sample.num_tokens},
          {"revision", sample.revision},
          {"content_id", sample.content_id},
          {"unrecorded", RangesToJson(sample.unrecorded)},
          {"weights", std::move(weights)},
          {"token_checks", std::move(checks)},
          {"file", sample.file},
          {"file_bytes", sample.file_bytes},
          {"crc32c", sample.crc32c},
          {"released", sample.released}};
}

bool IsInt64(const json& value) {
  return value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX});
}

absl::Status ReadWeights(JsonObject& object, int64_t rows, std::vector<WeightSpan>& weights) {
  const json* list = object.Find("weights");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) return Invalid(object.PathOf("weights"), "is not a list");
  for (const json& item : *list) {
    const bool fits = item.is_array() && item.size() == 4 && IsInt64(item[0]) && IsInt64(item[1]) && IsInt64(item[2]) &&
                      item[3].is_string();
    if (!fits) return Invalid(object.PathOf("weights"), "is not a list of [begin, end, version, label]");
    const WeightSpan span{.rows = {item[0], item[1]}, .version = item[2], .label = item[3]};
    if (span.rows.begin < 0 || span.rows.begin > span.rows.end || span.rows.end > rows) {
      return Invalid(object.PathOf("weights"), absl::StrCat(ToString(span.rows), " is not among ", rows, " rows"));
    }
    if (span.version < kUnknownWeightVersion) return Invalid(object.PathOf("weights"), "has a version below -1");
    weights.push_back(span);
  }
  return absl::OkStatus();
}

// A plain name: no other folder can be meant.
bool IsFileName(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

absl::Status ReadSample(const json& value, const std::string& path, ExportedSample& sample) {
  JsonObject object(value, path);
  for (const char* key : {"sample", "num_tokens", "file", "file_bytes", "crc32c"}) object.Require(key);
  int64_t crc32c = 0;
  object.Read("sample", sample.sample);
  object.Read("group", sample.group);
  object.Read("num_tokens", sample.num_tokens);
  object.Read("revision", sample.revision);
  object.Read("content_id", sample.content_id);
  object.Read("file", sample.file);
  object.Read("file_bytes", sample.file_bytes);
  object.Read("crc32c", crc32c);
  object.Read("released", sample.released);
  absl::Status status = ReadRanges(object, "unrecorded", sample.unrecorded);
  status.Update(ReadWeights(object, std::max<int64_t>(sample.num_tokens, 1) - 1, sample.weights));
  status.Update(ReadTokenChecks(object, "token_checks", sample.token_checks));
  status.Update(object.status());
  status.Update(CheckId(sample.sample, path));
  if (!status.ok()) return status;
  if (sample.num_tokens < 1) return Invalid(object.PathOf("num_tokens"), "is below 1");
  if (sample.num_tokens > kMaxRows + 1) {
    return Invalid(object.PathOf("num_tokens"), absl::StrCat("is above the limit of ", kMaxRows + 1));
  }
  if (sample.revision < 0) return Invalid(object.PathOf("revision"), "is below 0");
  if (crc32c < 0 || crc32c > UINT32_MAX) return Invalid(object.PathOf("crc32c"), "is no CRC32C");
  if (!IsFileName(sample.file)) return Invalid(object.PathOf("file"), "is not the name of a file beside the index");
  sample.crc32c = static_cast<uint32_t>(crc32c);
  return CheckNormal(sample.unrecorded, {0, sample.num_tokens - 1});
}

absl::Status CheckVersion(const json& value) {
  const json* version = value.is_object() && value.contains("version") ? &value["version"] : nullptr;
  if (version != nullptr && *version == kVersion) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("version: ", version == nullptr ? "none" : version->dump(),
                                ", this reads exported runs of version ", kVersion),
                   {.reason = Reason::kVersionMismatch, .field = "version"});
}

}  // namespace

std::string ExportedIndexToJson(const ExportedRun& run) {
  json samples = json::array();
  for (const ExportedSample& sample : run.samples) samples.push_back(ToJson(sample));
  return DumpJson({{"version", kVersion},
                   {"generation", run.generation},
                   {"run", run.run},
                   {"producer", run.producer == Producer::kTrainer ? "trainer" : "rollout"},
                   {"geometry", GeometryToJson(run.geometry)},
                   {"samples", std::move(samples)}});
}

absl::StatusOr<ExportedRun> ExportedIndexFromJson(absl::string_view text) {
  const auto value = ParseJson(text, "index");
  if (!value.ok()) return value.status();
  if (absl::Status status = CheckVersion(*value); !status.ok()) return status;
  JsonObject object(*value, "");
  int64_t version = 0, generation = 0;
  std::string run;
  Producer producer = Producer::kRollout;
  object.Read("version", version);
  object.Read("generation", generation);
  object.Read("run", run);
  ReadProducer(object, producer);
  for (const char* key : {"geometry", "samples"}) object.Require(key);
  const json* geometry_json = object.Find("geometry");
  const json* list = object.Find("samples");
  if (absl::Status status = object.status(); !status.ok()) return status;
  const auto options = GeometryOptionsFromJson(*geometry_json, "geometry");
  if (!options.ok()) return options.status();
  auto geometry = Geometry::Create(*options);
  if (!geometry.ok()) return geometry.status();
  if (generation < 0) return Invalid("generation", "is below 0");
  ExportedRun out{
      .run = std::move(run), .producer = producer, .geometry = *std::move(geometry), .generation = generation};
  if (!list->is_array()) return Invalid("samples", "is not a list");
  std::set<std::string> names;
  for (const json& item : *list) {
    const std::string path = absl::StrCat("samples[", out.samples.size(), "]");
    absl::Status status = ReadSample(item, path, out.samples.emplace_back());
    if (!status.ok()) return status;
    const ExportedSample& sample = out.samples.back();
    if (!names.insert(sample.sample).second) return Invalid(path, "is there already");
    const int64_t most = *out.geometry.array_ids(sample.recorded_rows()) * out.geometry.max_id_bytes();
    if (sample.file_bytes < 0 || sample.file_bytes > most + kMostHeaderBytes) {
      return Invalid(path + ".file_bytes", "is not the size of a file of such a sample");
    }
  }
  return out;
}

std::string ExportedSampleToJson(const ExportedSample& sample) { return DumpJson(ToJson(sample)); }

absl::StatusOr<ExportedSample> ExportedSampleFromJson(absl::string_view text) {
  const auto value = ParseJson(text, "sample");
  if (!value.ok()) return value.status();
  ExportedSample sample;
  if (absl::Status status = ReadSample(*value, "sample", sample); !status.ok()) return status;
  return sample;
}

}  // namespace wire
}  // namespace routing_replay
