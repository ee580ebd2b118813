#include "proto/exported/found_run.h"

#include <algorithm>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/exported/files.h"
#include "proto/exported/index_json.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

constexpr size_t kCrcDigits = 8;

absl::string_view AsText(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What the file holds, or nothing if it cannot be read.
std::string TextOf(const std::filesystem::path& path) {
  const auto bytes = ReadFile(path);
  return bytes.ok() ? std::string(AsText(*bytes)) : std::string();
}

// The JSON of the whole lines up to the first one that is not as it was written.
std::vector<absl::string_view> JournalLines(absl::string_view text) {
  std::vector<absl::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == text.npos || end <= kCrcDigits) break;
    const absl::string_view json = text.substr(kCrcDigits + 1, end - kCrcDigits - 1);
    if (text.substr(0, end + 1) != JournalLine(json)) break;
    lines.push_back(json);
    text.remove_prefix(end + 1);
  }
  return lines;
}

absl::Status CheckSame(const std::filesystem::path& directory, const ExportedRun& there, const ExportedRun& wanted) {
  const auto other = [&](Reason reason, absl::string_view field, absl::string_view is, absl::string_view not_this) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat(directory.string(), ": holds an exported run of ", field, " ", is, ", not ", not_this),
        {.reason = reason, .field = std::string(field)});
  };
  if (there.run != wanted.run) return other(Reason::kField, "run", there.run, wanted.run);
  if (there.producer != wanted.producer) {
    return other(Reason::kField, "producer", ProducerName(there.producer), ProducerName(wanted.producer));
  }
  if (there.geometry == wanted.geometry) return absl::OkStatus();
  return other(Reason::kGeometryMismatch, "geometry", there.geometry.DebugString(), wanted.geometry.DebugString());
}

class Finder {
 public:
  Finder(const std::filesystem::path& directory, const ExportedRun& wanted) : directory_(directory), wanted_(wanted) {}

  absl::StatusOr<FoundRun> Find() {
    absl::Status status = LookAround();
    if (status.ok()) status = found_.finished ? ReadFinished() : ReadUnfinished();
    if (status.ok()) status = ReadJournal();
    if (!status.ok()) return status;
    return std::move(found_);
  }

 private:
  absl::Status LookAround() {
    std::error_code error;
    bool foreign = false, exported = false;
    auto entry = std::filesystem::directory_iterator(directory_, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      const absl::string_view stem = absl::StripSuffix(name, ".part");
      int64_t number = 0;
      if (IsExportFileName(name) && absl::SimpleAtoi(name.substr(0, name.find('.')), &number)) {
        found_.next_file = std::max(found_.next_file, number + 1);
      } else if (stem == kExportIndex || stem == kExportMarker || stem == kExportJournal) {
        exported = true;
        found_.finished |= name == kExportMarker;
      } else {
        foreign = true;
      }
    }
    if (error) return absl::InternalError(absl::StrCat(directory_.string(), ": ", error.message()));
    if (!foreign || exported) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(directory_.string(), ": holds something else than an exported run"));
  }

  absl::Status ReadFinished() {
    auto run = ReadExportedRun(directory_);
    if (!run.ok()) return run.status();
    if (absl::Status status = CheckSame(directory_, *run, wanted_); !status.ok()) return status;
    for (ExportedSample& sample : run->samples) {
      std::error_code error;
      const uintmax_t size = std::filesystem::file_size(directory_ / sample.file, error);
      if (error || size != static_cast<uintmax_t>(sample.file_bytes)) found_.damaged.insert(sample.sample);
      Take(std::move(sample));
    }
    return absl::OkStatus();
  }

  // An export that put its index in place and then not its marker.
  absl::Status ReadUnfinished() {
    auto run = ExportedIndexFromJson(TextOf(directory_ / kExportIndex));
    if (!run.ok()) return absl::OkStatus();
    if (absl::Status status = CheckSame(directory_, *run, wanted_); !status.ok()) return status;
    for (ExportedSample& sample : run->samples) TakeIfWhole(std::move(sample));
    return absl::OkStatus();
  }

  absl::Status ReadJournal() {
    const std::string text = TextOf(directory_ / kExportJournal);
    const std::vector<absl::string_view> lines = JournalLines(text);
    if (lines.empty()) return absl::OkStatus();
    const auto run = ExportedIndexFromJson(lines[0]);
    if (!run.ok()) return run.status();
    if (absl::Status status = CheckSame(directory_, *run, wanted_); !status.ok()) return status;
    for (size_t i = 1; i < lines.size(); ++i) {
      auto sample = ExportedSampleFromJson(lines[i]);
      if (!sample.ok()) return sample.status();
      const std::string name = sample->sample;
      if (TakeIfWhole(*std::move(sample))) found_.journalled.insert(name);
    }
    return absl::OkStatus();
  }

  bool TakeIfWhole(ExportedSample sample) {
    if (!ReadExportedFile(directory_, sample).ok()) return false;
    found_.damaged.erase(sample.sample);
    Take(std::move(sample));
    return true;
  }

  void Take(ExportedSample sample) {
    const auto [at, is_new] = places_.emplace(sample.sample, found_.samples.size());
    if (is_new) {
      found_.samples.push_back(std::move(sample));
    } else {
      found_.samples[at->second] = std::move(sample);
    }
  }

  const std::filesystem::path& directory_;
  const ExportedRun& wanted_;
  FoundRun found_;
  std::unordered_map<std::string, size_t> places_;
};

}  // namespace

absl::StatusOr<FoundRun> FindExported(const std::filesystem::path& directory, const ExportedRun& run) {
  return Finder(directory, run).Find();
}

std::string JournalLine(absl::string_view json) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(json.data());
  return absl::StrFormat("%08x %s\n", Crc32c({bytes, json.size()}), json);
}

std::string ExportFileName(int64_t number) { return absl::StrFormat("%08d.npy", number); }

bool IsExportFileName(absl::string_view name) {
  absl::ConsumeSuffix(&name, ".part");
  if (!absl::ConsumeSuffix(&name, ".npy")) return false;
  return name.size() >= 8 && name.size() <= 18 &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(c); });
}

}  // namespace routing_replay
