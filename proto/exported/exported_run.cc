#include "proto/exported/exported_run.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "proto/json/json.h"
#include "proto/wire/mutex.h"
#include "proto/wire/payload/npy.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay {
inline namespace wire {
namespace {

using nlohmann::json;

constexpr int64_t kVersion = 2;
constexpr int64_t kMostHeaderBytes = 4096;  // Largest header of a .npy file.

absl::Span<const uint8_t> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

absl::Status Damaged(absl::string_view what, const std::string& sample = "") {
  return MakeError(absl::StatusCode::kDataLoss, what, {.reason = Reason::kChecksum, .sample = sample});
}

// Reads a whole file. NOT_FOUND if the file cannot be opened, INTERNAL if it cannot be read or is not a regular file.
absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::filesystem::path& path) {
  const auto failure = [&] { return absl::StrCat(path.string(), ": ", std::generic_category().message(errno)); };
  // Check the kind first: a directory could be opened like a file, and its size would seem to be 2^63 - 1 bytes.
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

// True if `name` is a plain file name: it names a file in the index's own directory, never one outside.
bool IsFileName(const std::string& name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// Checks the id, the number of tokens and the unrecorded ranges of a sample that was read from an index.
absl::Status CheckSample(const ExportedSample& sample, const std::string& path) {
  RR_RETURN_IF_ERROR(CheckId(sample.sample, path));
  if (sample.num_tokens < 1 || sample.num_tokens > kMaxRows + 1) {
    return Invalid({.reason = Reason::kField, .field = path + ".num_tokens", .sample = sample.sample},
                   absl::StrCat("must be in [1, ", kMaxRows + 1, "], got ", sample.num_tokens));
  }
  return CheckNormal(sample.unrecorded, {0, sample.num_tokens - 1});
}

absl::Status CheckWeights(absl::Span<const WeightSpan> weights, int64_t rows, const std::string& path) {
  for (const WeightSpan& span : weights) {
    if (span.rows.begin < 0 || span.rows.begin > span.rows.end || span.rows.end > rows) {
      return Invalid(path, absl::StrCat(ToString(span.rows), " is out of range: the sample has ", rows, " rows"));
    }
    if (span.version < kUnknownWeightVersion) return Invalid(path, "has a version below -1");
  }
  return absl::OkStatus();
}

absl::Status ReadSample(const json& value, const std::string& path, ExportedSample& sample) {
  JsonObject object(value, path);
  for (const char* key : {"sample", "num_tokens", "file", "file_bytes", "crc32c"}) object.Require(key);
  object.Read("sample", sample.sample);
  object.Read("group", sample.group);
  object.Read("num_tokens", sample.num_tokens);
  object.Read("revision", sample.revision);
  object.Read("content_id", sample.content_id);
  object.Read("unrecorded", sample.unrecorded);
  object.Read("weights", sample.weights);
  object.Read("token_checks", sample.token_checks);
  object.Read("file", sample.file);
  object.Read("file_bytes", sample.file_bytes);
  object.Read("crc32c", sample.crc32c);
  RR_RETURN_IF_ERROR(object.status());
  RR_RETURN_IF_ERROR(CheckSample(sample, path));
  RR_RETURN_IF_ERROR(CheckWeights(sample.weights, sample.num_tokens - 1, object.PathOf("weights")));
  if (sample.revision < 0) return Invalid(object.PathOf("revision"), "must be at least 0");
  if (!IsFileName(sample.file)) return Invalid(object.PathOf("file"), "must be the name of a file beside the index");
  return absl::OkStatus();
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
    RR_RETURN_IF_ERROR(ReadSample(item, path, run.samples.emplace_back()));
    const ExportedSample& sample = run.samples.back();
    if (!names.insert(sample.sample).second) return Invalid(path, "occurs twice");
    const int64_t most = *run.geometry.array_ids(sample.recorded_rows()) * run.geometry.max_id_bytes();
    if (sample.file_bytes < 0 || sample.file_bytes > most + kMostHeaderBytes) {
      return Invalid(path + ".file_bytes", "does not match the number of recorded rows");
    }
  }
  return absl::OkStatus();
}

// The dtype of a sample's .npy file, an array [recorded rows][MoE layers][K]: |u1 or <u2.
DType DTypeOf(const Geometry& geometry) { return geometry.max_id_bytes() == 1 ? DType::kU8 : DType::kU16; }

std::vector<int64_t> ShapeOf(const Geometry& geometry, const ExportedSample& sample) {
  return {sample.recorded_rows(), geometry.num_moe_layers(), geometry.max_top_k()};
}

// Converts an index to its text.
std::string IndexToText(const ExportedRun& run) {
  json samples = json::array();
  for (const ExportedSample& sample : run.samples) samples.push_back(ToJson(sample));
  std::string text = DumpJson({{"version", kVersion},
                               {"run", run.run},
                               {"producer", ProducerName(run.producer)},
                               {"geometry", GeometryToJson(run.geometry)},
                               {"samples", std::move(samples)}});
  text.back() = ',';
  text += '\n';
  return text + LastLine(text);
}

absl::StatusOr<ExportedRun> IndexFromText(absl::string_view text) {
  const size_t last = LastLine("").size();
  if (text.size() < last || text.substr(text.size() - last) != LastLine(text.substr(0, text.size() - last))) {
    return Damaged(absl::StrCat(kExportIndex, ": does not match the CRC32C in its last line"));
  }
  RR_ASSIGN_OR_RETURN(const auto value, ParseJson(text, "index"));
  RR_RETURN_IF_ERROR(CheckVersion(value));
  JsonObject object(value, "");
  std::string run;
  Producer producer = Producer::kRollout;
  for (const char* checked : {"version", "crc32c"}) object.Find(checked);
  object.Read("run", run);
  object.Read(
      "producer",
      {{ProducerName(Producer::kRollout), Producer::kRollout}, {ProducerName(Producer::kTrainer), Producer::kTrainer}},
      producer);
  for (const char* key : {"geometry", "samples"}) object.Require(key);
  const json* geometry_json = object.Find("geometry");
  const json* list = object.Find("samples");
  RR_RETURN_IF_ERROR(object.status());
  RR_ASSIGN_OR_RETURN(const auto options, GeometryOptionsFromJson(*geometry_json, "geometry"));
  RR_ASSIGN_OR_RETURN(auto geometry, Geometry::Create(options));
  ExportedRun out{.run = std::move(run), .producer = producer, .geometry = std::move(geometry), .samples = {}};
  RR_RETURN_IF_ERROR(ReadSamples(*list, out));
  return out;
}

// Files are synced in batches: large enough for the file system to write many files at once, small enough for a disk to
// finish one quickly. A file system combines syncs that several threads wait for at the same time; more than 16 threads
// gain little.
constexpr size_t kSyncFiles = 1024;
constexpr int64_t kSyncBytes = int64_t{256} << 20;
constexpr size_t kSyncThreads = 16;

std::error_code LastError() { return {errno, std::generic_category()}; }

absl::Status Result(const std::error_code& error, const std::filesystem::path& path) {
  return error ? absl::ErrnoToStatus(error.value(), path.string()) : absl::OkStatus();
}

// Creates a new file. An existing link with that name is not followed.
absl::Status WriteNewFile(const std::filesystem::path& path, absl::Span<const absl::Span<const uint8_t>> parts) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0) return Result(LastError(), path);
  std::error_code error;
  for (absl::Span<const uint8_t> part : parts) {
    while (!part.empty() && !error) {
      const ssize_t written = write(descriptor, part.data(), part.size());
      if (written >= 0) part.remove_prefix(static_cast<size_t>(written));
      if (written < 0 && errno != EINTR) error = LastError();
    }
  }
  if (close(descriptor) != 0 && !error) error = LastError();
  return Result(error, path);
}

// Writes the contents of a file, or the names in a directory, from the system's memory to the disk, also what was
// written through other descriptors. Does nothing for a directory on a file system that cannot sync directories.
absl::Status Sync(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return Result(LastError(), path);
  const std::error_code error = fsync(descriptor) == 0 ? std::error_code() : LastError();
  close(descriptor);
  return error == std::errc::invalid_argument ? absl::OkStatus() : Result(error, path);
}

absl::Status SyncAll(absl::Span<const std::filesystem::path> files) {
  std::atomic<size_t> next = 0;
  Mutex mutex;
  absl::Status first;
  const auto work = [&] {
    for (size_t i = next++; i < files.size(); i = next++) {
      const absl::Status status = Sync(files[i]);
      if (status.ok()) continue;
      next = files.size();
      const MutexLock lock(mutex);
      first.Update(status);
    }
  };
  std::vector<std::thread> others;
  while (others.size() + 1 < std::min(files.size(), kSyncThreads)) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  return first;
}

bool IsExportFile(absl::string_view name) {
  return name == kExportIndex || (absl::ConsumeSuffix(&name, ".npy") && name.size() >= 8 &&
                                  std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; }));
}

// Removes the files of an export that was killed. Removes nothing if the directory contains any other file.
absl::Status RemovePart(const std::filesystem::path& part) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator entry(part, error), end; !error && entry != end; entry.increment(error)) {
    if (!IsExportFile(entry->path().filename().string())) {
      return absl::AlreadyExistsError(absl::StrCat(entry->path().string(), " is not an export file: move it away"));
    }
    files.push_back(entry->path());
  }
  if (error == std::errc::no_such_file_or_directory) return absl::OkStatus();
  files.push_back(part);
  for (const std::filesystem::path& file : files) {
    if (!error) std::filesystem::remove(file, error);
  }
  return Result(error, part);
}

}  // namespace

absl::StatusOr<ExportedRun> ReadExportedRun(const std::filesystem::path& directory) {
  const auto index = ReadFile(directory / kExportIndex);
  if (index.ok()) return IndexFromText({reinterpret_cast<const char*>(index->data()), index->size()});
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat(directory.string(), " is not an exported run: ", index.status().message()),
                   {.reason = Reason::kNotCommitted, .field = kExportIndex});
}

absl::StatusOr<std::vector<uint8_t>> ReadExportedFile(const std::filesystem::path& directory,
                                                      const ExportedSample& sample) {
  const std::filesystem::path path = directory / sample.file;
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  // Reads the file only if its size is right.
  if (error || size == static_cast<uintmax_t>(sample.file_bytes)) {
    auto bytes = ReadFile(path);
    if (!bytes.ok()) return Damaged(bytes.status().message(), sample.sample);
    if (static_cast<int64_t>(bytes->size()) == sample.file_bytes && Crc32c(*bytes) == sample.crc32c) return bytes;
  }
  return Damaged(absl::StrCat("sample ", sample.sample, ": ", path.string(), " does not match its CRC32C in the index"),
                 sample.sample);
}

absl::StatusOr<std::vector<uint8_t>> ReadExportedIds(const std::filesystem::path& directory, const Geometry& geometry,
                                                     const ExportedSample& sample) {
  RR_ASSIGN_OR_RETURN(auto file, ReadExportedFile(directory, sample));
  const auto header = ParseNpyHeader(file);
  if (!header.ok()) return WithSample(header.status(), sample.sample);
  const std::vector<int64_t> shape = ShapeOf(geometry, sample);
  const auto ids = geometry.array_ids(shape[0]);
  const size_t given = file.size() - header->data_offset;
  const bool fits = header->dtype == DTypeOf(geometry) && header->shape == shape && ids &&
                    given / geometry.max_id_bytes() == static_cast<size_t>(*ids) &&
                    given % geometry.max_id_bytes() == 0;
  if (fits) {
    file.erase(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(header->data_offset));
    return file;
  }
  return Invalid({.reason = Reason::kShape, .field = "file", .sample = sample.sample},
                 absl::StrCat(sample.file, " must be an array of ", shape[0], " rows, ", shape[1], " layers and K ",
                              shape[2], " in the dtype of storage"));
}

absl::StatusOr<std::unique_ptr<RunExporter>> RunExporter::Create(const std::filesystem::path& directory,
                                                                 std::string run, Producer producer,
                                                                 Geometry geometry) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(directory, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "run/" means "run".
  if (error) return Result(error, directory);
  const bool exists = std::filesystem::exists(path, error);
  if (!error && exists && !std::filesystem::is_directory(path, error)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (!error && exists && !std::filesystem::is_empty(path, error)) {
    return absl::AlreadyExistsError(absl::StrCat(path.string(), ": must be a new directory, or an empty one"));
  }
  if (error) return Result(error, path);
  std::filesystem::path part = path;
  part += ".part";
  RR_RETURN_IF_ERROR(RemovePart(part));
  // Sync the new directories before any file is written into them.
  std::vector<std::filesystem::path> parents;
  for (std::filesystem::path up = part.parent_path(); up.has_relative_path() && !std::filesystem::exists(up, error);
       up = up.parent_path()) {
    parents.push_back(up.parent_path());
  }
  if (!error) std::filesystem::create_directories(part, error);
  if (error) return Result(error, path);
  for (const std::filesystem::path& parent : parents) {
    RR_RETURN_IF_ERROR(Sync(parent));
  }
  return std::unique_ptr<RunExporter>(
      new RunExporter(std::move(path), std::move(part),
                      {.run = std::move(run), .producer = producer, .geometry = std::move(geometry), .samples = {}}));
}

RunExporter::~RunExporter() {
  if (!finished_) RemovePart(part_).IgnoreError();
}

absl::Status RunExporter::Add(ExportedSample sample, absl::Span<const uint8_t> ids) {
  const std::string text = MakeNpyHeader(DTypeOf(run_.geometry), ShapeOf(run_.geometry, sample));
  const absl::Span<const uint8_t> header = AsBytes(text);
  sample.file = absl::StrFormat("%08d.npy", run_.samples.size());
  sample.file_bytes = static_cast<int64_t>(header.size() + ids.size());
  sample.crc32c = Crc32cExtend(Crc32c(header), ids);
  RR_RETURN_IF_ERROR(WriteFile(sample, {header, ids}));
  run_.samples.push_back(std::move(sample));
  return absl::OkStatus();
}

absl::Status RunExporter::Take(const std::filesystem::path& from, ExportedSample sample) {
  const std::filesystem::path there = from / sample.file;
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(there, error);
  const std::string file = absl::StrFormat("%08d.npy", run_.samples.size());
  const bool linked =
      !error && size == static_cast<uintmax_t>(sample.file_bytes) && link(there.c_str(), (part_ / file).c_str()) == 0;
  if (!linked) {
    RR_ASSIGN_OR_RETURN(const auto bytes, ReadExportedFile(from, sample));
    sample.file = file;
    RR_RETURN_IF_ERROR(WriteFile(sample, {bytes}));
  }
  sample.file = file;
  run_.samples.push_back(std::move(sample));
  return absl::OkStatus();
}

absl::Status RunExporter::WriteFile(const ExportedSample& sample, absl::Span<const absl::Span<const uint8_t>> parts) {
  const std::filesystem::path path = part_ / sample.file;
  RR_RETURN_IF_ERROR(WriteNewFile(path, parts));
  written_.push_back(path);
  written_bytes_ += sample.file_bytes;
  return written_.size() >= kSyncFiles || written_bytes_ >= kSyncBytes ? SyncWritten() : absl::OkStatus();
}

absl::Status RunExporter::SyncWritten() {
  written_bytes_ = 0;
  return SyncAll(std::exchange(written_, {}));
}

absl::Status RunExporter::Finish() {
  const std::string text = IndexToText(run_);
  const std::filesystem::path index = part_ / kExportIndex;
  absl::Status status = WriteNewFile(index, {AsBytes(text)});
  written_.push_back(index);
  if (status.ok()) status = SyncWritten();
  if (status.ok()) status = Sync(part_);
  if (!status.ok()) return status;
  std::error_code error;
  std::filesystem::rename(part_, directory_, error);
  if (error == std::errc::directory_not_empty || error == std::errc::file_exists) {
    return absl::AlreadyExistsError(absl::StrCat(directory_.string(), ": another export to it finished first"));
  }
  if (error) return Result(error, directory_);
  finished_ = true;
  return Sync(directory_.parent_path());
}

}  // namespace wire
}  // namespace routing_replay
