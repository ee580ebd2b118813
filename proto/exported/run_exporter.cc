// Writing an export: new files, hard links, the index, and one rename.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <initializer_list>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "proto/exported/exported_run.h"
#include "proto/wire/mutex.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay {
inline namespace wire {
namespace {

// What is synced at once: enough for a file system to write many at a time, and no more than a moment's worth of a
// disk. It writes what many threads wait for at once; more than 16 gain little on any.
constexpr size_t kSyncFiles = 1024;
constexpr int64_t kSyncBytes = int64_t{256} << 20;
constexpr size_t kSyncThreads = 16;

std::error_code LastError() { return {errno, std::generic_category()}; }

absl::Status Result(const std::error_code& error, const std::filesystem::path& path) {
  return error ? absl::InternalError(absl::StrCat(path.string(), ": ", error.message())) : absl::OkStatus();
}

// Why a directory that was named cannot be used: the caller's fault, or the system's.
absl::Status DirectoryError(const std::error_code& error, const std::filesystem::path& directory) {
  const auto is_one_of = [&error](std::initializer_list<std::errc> some) {
    return std::any_of(some.begin(), some.end(), [&error](std::errc one) { return error == one; });
  };
  const std::string text = absl::StrCat(directory.string(), ": ", error.message());
  using std::errc;
  if (is_one_of({errc::permission_denied, errc::operation_not_permitted, errc::read_only_file_system})) {
    return absl::PermissionDeniedError(text);
  }
  if (is_one_of({errc::no_such_file_or_directory, errc::not_a_directory, errc::file_exists, errc::filename_too_long,
                 errc::too_many_symbolic_link_levels, errc::invalid_argument})) {
    return absl::InvalidArgumentError(text);
  }
  return absl::InternalError(text);
}

// A new file; a link in its place is not followed.
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

// A file's contents, or a directory's names, where the file system syncs such. What was written through another
// descriptor is synced as well.
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

// What an export that was killed left. Nothing is removed if anything else is there.
absl::Status RemovePart(const std::filesystem::path& part) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator entry(part, error), end; !error && entry != end; entry.increment(error)) {
    if (!IsExportFile(entry->path().filename().string())) {
      return absl::AlreadyExistsError(absl::StrCat(entry->path().string(), " is not a file of an export: remove it"));
    }
    files.push_back(entry->path());
  }
  if (error == std::errc::no_such_file_or_directory) return absl::OkStatus();
  files.push_back(part);
  for (const std::filesystem::path& file : files) {
    if (!error) std::filesystem::remove(file, error);
  }
  return error ? DirectoryError(error, part) : absl::OkStatus();
}

absl::Status Invalid(const ExportedSample& sample, Reason reason, absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", what),
                   {.reason = reason, .field = std::string(field), .sample = sample.sample});
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunExporter>> RunExporter::Create(const std::filesystem::path& directory,
                                                                 std::string run, Producer producer,
                                                                 Geometry geometry) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(directory, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "run/" is "run".
  if (error) return DirectoryError(error, directory);
  const bool exists = std::filesystem::exists(path, error);
  if (!error && exists && !std::filesystem::is_directory(path, error)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (!error && exists && !std::filesystem::is_empty(path, error)) {
    return absl::AlreadyExistsError(absl::StrCat(path.string(), ": must be a new directory, or an empty one"));
  }
  if (error) return DirectoryError(error, path);
  std::filesystem::path part = path;
  part += ".part";
  if (absl::Status status = RemovePart(part); !status.ok()) return status;
  // Their names are on the disk before anything is in them.
  std::vector<std::filesystem::path> parents;
  for (std::filesystem::path up = part.parent_path(); up.has_relative_path() && !std::filesystem::exists(up, error);
       up = up.parent_path()) {
    parents.push_back(up.parent_path());
  }
  if (!error) std::filesystem::create_directories(part, error);
  if (error) return DirectoryError(error, path);
  for (const std::filesystem::path& parent : parents) {
    if (absl::Status status = Sync(parent); !status.ok()) return status;
  }
  return std::unique_ptr<RunExporter>(
      new RunExporter(std::move(path), std::move(part),
                      {.run = std::move(run), .producer = producer, .geometry = std::move(geometry), .samples = {}}));
}

RunExporter::~RunExporter() {
  if (!finished_) RemovePart(part_).IgnoreError();
}

absl::Status RunExporter::CheckFits(const ExportedSample& sample) const {
  if (absl::Status status = CheckId(sample.sample, "sample"); !status.ok()) return status;
  if (sample.num_tokens < 1 || sample.num_tokens > kMaxRows + 1) {
    return Invalid(sample, Reason::kField, "num_tokens",
                   absl::StrCat("must be in [1, ", kMaxRows + 1, "], got ", sample.num_tokens));
  }
  if (absl::Status status = CheckNormal(sample.unrecorded, {0, sample.num_tokens - 1}); !status.ok()) return status;
  if (names_.count(sample.sample) != 0) return Invalid(sample, Reason::kField, "sample", "is there already");
  return absl::OkStatus();
}

absl::Status RunExporter::Add(ExportedSample sample, absl::Span<const uint8_t> ids) {
  if (absl::Status status = CheckFits(sample); !status.ok()) return status;
  const Geometry& geometry = run_.geometry;
  const int64_t rows = sample.recorded_rows(), given = static_cast<int64_t>(ids.size());
  const int64_t id_bytes = geometry.max_id_bytes();
  if (given % id_bytes != 0 || geometry.array_ids(rows) != given / id_bytes) {
    return Invalid(sample, Reason::kLength, "ids",
                   absl::StrCat(ids.size(), " bytes are not ", rows, " rows of ", geometry.num_moe_layers(),
                                " layers of ", geometry.max_top_k(), " ids of ", id_bytes, " bytes"));
  }
  const std::string text = MakeNpyHeader(ExportedDType(geometry), ExportedShape(geometry, sample));
  const absl::Span<const uint8_t> header(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  sample.file = absl::StrFormat("%08d.npy", run_.samples.size());
  sample.file_bytes = static_cast<int64_t>(header.size() + ids.size());
  sample.crc32c = Crc32cExtend(Crc32c(header), ids);
  if (absl::Status status = WriteFile(sample, {header, ids}); !status.ok()) return status;
  Keep(std::move(sample));
  return absl::OkStatus();
}

absl::Status RunExporter::Take(const std::filesystem::path& from, ExportedSample sample) {
  if (absl::Status status = CheckFits(sample); !status.ok()) return status;
  const std::filesystem::path there = from / sample.file;
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(there, error);
  const std::string file = absl::StrFormat("%08d.npy", run_.samples.size());
  const bool linked =
      !error && size == static_cast<uintmax_t>(sample.file_bytes) && link(there.c_str(), (part_ / file).c_str()) == 0;
  if (!linked) {
    const auto bytes = ReadExportedFile(from, sample);
    if (!bytes.ok()) return bytes.status();
    sample.file = file;
    if (absl::Status status = WriteFile(sample, {*bytes}); !status.ok()) return status;
  }
  sample.file = file;
  Keep(std::move(sample));
  return absl::OkStatus();
}

absl::Status RunExporter::WriteFile(const ExportedSample& sample, absl::Span<const absl::Span<const uint8_t>> parts) {
  const std::filesystem::path path = part_ / sample.file;
  if (absl::Status status = WriteNewFile(path, parts); !status.ok()) return status;
  written_.push_back(path);
  written_bytes_ += sample.file_bytes;
  return written_.size() >= kSyncFiles || written_bytes_ >= kSyncBytes ? SyncWritten() : absl::OkStatus();
}

absl::Status RunExporter::SyncWritten() {
  written_bytes_ = 0;
  return SyncAll(std::exchange(written_, {}));
}

void RunExporter::Keep(ExportedSample sample) {
  names_.insert(sample.sample);
  run_.samples.push_back(std::move(sample));
}

absl::Status RunExporter::Finish() {
  const std::string text = ExportedIndexToText(run_);
  const std::filesystem::path index = part_ / kExportIndex;
  absl::Status status = WriteNewFile(index, {{reinterpret_cast<const uint8_t*>(text.data()), text.size()}});
  written_.push_back(index);
  if (status.ok()) status = SyncWritten();
  if (status.ok()) status = Sync(part_);
  if (!status.ok()) return status;
  std::error_code error;
  std::filesystem::rename(part_, directory_, error);
  if (error == std::errc::directory_not_empty || error == std::errc::file_exists) {
    return absl::AlreadyExistsError(absl::StrCat(directory_.string(), ": another export ended first"));
  }
  if (error) return Result(error, directory_);
  finished_ = true;
  return Sync(directory_.parent_path());
}

}  // namespace wire
}  // namespace routing_replay
