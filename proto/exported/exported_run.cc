#include "proto/exported/exported_run.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/json/json.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay {
inline namespace wire {
namespace {

using nlohmann::json;

constexpr int64_t kVersion = 2;
constexpr int64_t kMostHeaderBytes = 4096;  // Of a .npy file.

absl::Span<const uint8_t> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

absl::Status Damaged(absl::string_view what, const std::string& sample = "") {
  return MakeError(absl::StatusCode::kDataLoss, what, {.reason = Reason::kChecksum, .sample = sample});
}

// NOT_FOUND if it cannot be opened, INTERNAL if it cannot be read or is not a regular file.
absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::filesystem::path& path) {
  const auto failure = [&] { return absl::StrCat(path.string(), ": ", std::generic_category().message(errno)); };
  // A folder can be opened, too, and says that it has 2^63 - 1 bytes.
  std::error_code error;
  const std::filesystem::file_status kind = std::filesystem::status(path, error);
  if (std::filesystem::exists(kind) && !std::filesystem::is_regular_file(kind)) {
    return absl::InternalError(absl::StrCat(path.string(), ": must be a regular file"));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(failure());
  const std::streamoff size = file.tellg();
  if (size < 0) return absl::InternalError(failure());
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), size);
  if (!file) return absl::InternalError(failure());
  return bytes;
}

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
          {"crc32c", sample.crc32c}};
}

bool IsInt64(const json& value) {
  return value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX});
}

absl::Status ReadWeights(JsonObject& object, int64_t rows, std::vector<WeightSpan>& weights) {
  const json* list = object.Find("weights");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) return Invalid(object.PathOf("weights"), "must be a list");
  for (const json& item : *list) {
    const bool fits = item.is_array() && item.size() == 4 && IsInt64(item[0]) && IsInt64(item[1]) && IsInt64(item[2]) &&
                      item[3].is_string();
    if (!fits) return Invalid(object.PathOf("weights"), "must be a list of [begin, end, version, label]");
    const WeightSpan span{.rows = {item[0], item[1]}, .version = item[2], .label = item[3]};
    if (span.rows.begin < 0 || span.rows.begin > span.rows.end || span.rows.end > rows) {
      return Invalid(object.PathOf("weights"),
                     absl::StrCat(ToString(span.rows), " is out of range: the sample has ", rows, " rows"));
    }
    if (span.version < kUnknownWeightVersion)
      return Invalid(object.PathOf("weights"), "has a version that is out of range: it must be at least -1");
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
  absl::Status status = ReadRanges(object, "unrecorded", sample.unrecorded);
  status.Update(ReadWeights(object, std::max<int64_t>(sample.num_tokens, 1) - 1, sample.weights));
  status.Update(ReadTokenChecks(object, "token_checks", sample.token_checks));
  status.Update(object.status());
  status.Update(CheckId(sample.sample, path));
  if (!status.ok()) return status;
  if (sample.num_tokens < 1) return Invalid(object.PathOf("num_tokens"), "must be at least 1");
  if (sample.num_tokens > kMaxRows + 1) {
    return Invalid(object.PathOf("num_tokens"), absl::StrCat("must be at most ", kMaxRows + 1));
  }
  if (sample.revision < 0) return Invalid(object.PathOf("revision"), "must be at least 0");
  if (crc32c < 0 || crc32c > UINT32_MAX) return Invalid(object.PathOf("crc32c"), "is out of range");
  if (!IsFileName(sample.file)) return Invalid(object.PathOf("file"), "must be the name of a file beside the index");
  sample.crc32c = static_cast<uint32_t>(crc32c);
  return CheckNormal(sample.unrecorded, {0, sample.num_tokens - 1});
}

// The last line of an index: the CRC32C of all bytes before it, and the end of the object.
std::string LastLine(absl::string_view before) {
  return absl::StrFormat("\"crc32c\":\"%08x\"}\n", Crc32c(AsBytes(before)));
}

absl::Status CheckVersion(const json& value) {
  const json* version = value.is_object() && value.contains("version") ? &value["version"] : nullptr;
  if (version != nullptr && *version == kVersion) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("version: must be ", kVersion, ", got ", version == nullptr ? "none" : version->dump()),
                   {.reason = Reason::kVersionMismatch, .field = "version"});
}

absl::Status ReadSamples(const json& list, ExportedRun& run) {
  if (!list.is_array()) return Invalid("samples", "must be a list");
  std::set<std::string> names;
  for (const json& item : list) {
    const std::string path = absl::StrCat("samples[", run.samples.size(), "]");
    absl::Status status = ReadSample(item, path, run.samples.emplace_back());
    if (!status.ok()) return status;
    const ExportedSample& sample = run.samples.back();
    if (!names.insert(sample.sample).second) return Invalid(path, "is there already");
    const int64_t most = *run.geometry.array_ids(sample.recorded_rows()) * run.geometry.max_id_bytes();
    if (sample.file_bytes < 0 || sample.file_bytes > most + kMostHeaderBytes) {
      return Invalid(path + ".file_bytes", "is not the size of a file of such a sample");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ExportedIndexToText(const ExportedRun& run) {
  json samples = json::array();
  for (const ExportedSample& sample : run.samples) samples.push_back(ToJson(sample));
  std::string text = DumpJson({{"version", kVersion},
                               {"run", run.run},
                               {"producer", run.producer == Producer::kTrainer ? "trainer" : "rollout"},
                               {"geometry", GeometryToJson(run.geometry)},
                               {"samples", std::move(samples)}});
  text.back() = ',';
  text += '\n';
  return text + LastLine(text);
}

absl::StatusOr<ExportedRun> ExportedIndexFromText(absl::string_view text) {
  const size_t last = LastLine("").size();
  if (text.size() < last || text.substr(text.size() - last) != LastLine(text.substr(0, text.size() - last))) {
    return Damaged(absl::StrCat(kExportIndex, ": does not fit the CRC32C in its last line"));
  }
  const auto value = ParseJson(text, "index");
  if (!value.ok()) return value.status();
  if (absl::Status status = CheckVersion(*value); !status.ok()) return status;
  JsonObject object(*value, "");
  int64_t version = 0;
  std::string run, crc32c;
  Producer producer = Producer::kRollout;
  object.Read("version", version);
  object.Read("crc32c", crc32c);
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
  ExportedRun out{.run = std::move(run), .producer = producer, .geometry = *std::move(geometry), .samples = {}};
  if (absl::Status status = ReadSamples(*list, out); !status.ok()) return status;
  return out;
}

absl::StatusOr<ExportedRun> ReadExportedRun(const std::filesystem::path& directory) {
  const auto index = ReadFile(directory / kExportIndex);
  if (index.ok()) return ExportedIndexFromText({reinterpret_cast<const char*>(index->data()), index->size()});
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat(directory.string(), " is not an exported run: ", index.status().message()),
                   {.reason = Reason::kNotCommitted, .field = kExportIndex});
}

absl::StatusOr<std::vector<uint8_t>> ReadExportedFile(const std::filesystem::path& directory,
                                                      const ExportedSample& sample) {
  const std::filesystem::path path = directory / sample.file;
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  // Of another size it is not even read.
  if (error || size == static_cast<uintmax_t>(sample.file_bytes)) {
    auto bytes = ReadFile(path);
    if (!bytes.ok()) return Damaged(bytes.status().message(), sample.sample);
    if (static_cast<int64_t>(bytes->size()) == sample.file_bytes && Crc32c(*bytes) == sample.crc32c) return bytes;
  }
  return Damaged(absl::StrCat("sample ", sample.sample, ": ", path.string(), " does not fit its CRC32C in the index"),
                 sample.sample);
}

DType ExportedDType(const Geometry& geometry) { return geometry.max_id_bytes() == 1 ? DType::kU8 : DType::kU16; }

std::vector<int64_t> ExportedShape(const Geometry& geometry, const ExportedSample& sample) {
  return {sample.recorded_rows(), geometry.num_moe_layers(), geometry.max_top_k()};
}

absl::StatusOr<ExportedIds> ReadExportedIds(const std::filesystem::path& directory, const Geometry& geometry,
                                            const ExportedSample& sample) {
  auto file = ReadExportedFile(directory, sample);
  if (!file.ok()) return file.status();
  const auto header = ParseNpyHeader(*file);
  if (!header.ok()) return WithSample(header.status(), sample.sample);
  const std::vector<int64_t> shape = ExportedShape(geometry, sample);
  const auto ids = geometry.array_ids(shape[0]);
  const size_t given = file->size() - header->data_offset;
  const bool fits = header->dtype == ExportedDType(geometry) && header->shape == shape && ids &&
                    given / geometry.max_id_bytes() == static_cast<size_t>(*ids) &&
                    given % geometry.max_id_bytes() == 0;
  if (fits) return ExportedIds(*std::move(file), header->data_offset);
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("file: ", sample.file, " must be an array of ", shape[0], " rows, ", shape[1],
                                " layers and K ", shape[2], " in the dtype of storage"),
                   {.reason = Reason::kShape, .field = "file", .sample = sample.sample});
}

}  // namespace wire
}  // namespace routing_replay
