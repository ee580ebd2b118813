// What the commands that read rows show of them.
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "client/rrctl/compare/diff.h"
#include "client/rrctl/doctor/doctor.h"
#include "client/rrctl/file.h"
#include "client/rrctl/report/page.h"
#include "client/rrctl/session.h"
#include "proto/wire/human.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// Without what has a table of its own.
Document Without(Document object, const std::string& key) {
  object.erase(key);
  return object;
}

// Before a run is read for it.
absl::Status MayWriteReport(const Settings& settings) {
  const std::string& file = settings.report_file;
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(file, ignored);
  if (file == "-" || !std::filesystem::exists(there)) return absl::OkStatus();
  if (std::filesystem::is_directory(there)) {
    return Invalid("--output", absl::StrCat(file, " is a directory; name a file in it"));
  }
  if (!std::filesystem::is_regular_file(there)) {
    return Invalid("--output", absl::StrCat(file, " is a device or a pipe; write to standard output with -o -"));
  }
  if (settings.replace_report) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(file, " is there already; give --force to replace it, or another file with -o"));
}

}  // namespace

absl::Status Session::Diff() {
  failed_ = kExitUndecided;
  if (absl::Status status = CheckNames(settings_.diff); !status.ok()) return status;
  const auto client = Connect();
  if (!client.ok()) return client.status();
  absl::StatusOr<Document> found;
  {
    ProgressLine line;
    found =
        routing_replay::client::Diff(**client, settings_.diff, [&](const Progress& progress) { line.Show(progress); });
  }
  if (!found.ok()) return found.status();
  if (output_.format() == Format::kJson) {
    output_.Print(*found, Layout::kRecords);
  } else {
    output_.Print(Without(*found, "layers"), Layout::kRecords);
    if (!(*found)["layers"].empty()) output_.Write("\n");
    output_.Print((*found)["layers"], Layout::kColumns);
  }
  if (!(*found)["equal"].get<bool>()) verdict_ = kExitFailed;
  return output_.Flush();
}

absl::Status Session::Doctor() {
  failed_ = kExitUndecided;
  const auto findings = Examine(Options(), settings_.doctor, [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  });
  if (!findings.ok()) return findings.status();
  if (output_.format() == Format::kJson) {
    output_.Print(ToDocument(*findings), Layout::kRecords);
  } else {
    output_.Print(FindingTable(*findings), Layout::kColumns);
  }
  if (AnyFailed(*findings)) verdict_ = kExitFailed;
  return output_.Flush();
}

absl::Status Session::Report() {
  if (absl::Status status = MayWriteReport(settings_); !status.ok()) return status;
  const auto client = Connect();
  if (!client.ok()) return client.status();
  absl::StatusOr<Document> report;
  {
    ProgressLine line;
    report = GatherReport(**client, settings_.report, [&](const Progress& progress) { line.Show(progress); });
  }
  if (!report.ok()) return report.status();
  const std::string page = RenderReport(*report, Timestamp(Clock::Real().TimeOfDay()));
  if (settings_.report_file == "-") {
    output_.Write(page);
    return output_.Flush();
  }
  if (absl::Status written = WriteFile(settings_.report_file, page); !written.ok()) return written;
  output_.Print({{"run", settings_.report.run},
                 {"file", settings_.report_file},
                 {"file_bytes", page.size()},
                 {"samples", (*report)["samples"]["all"]},
                 {"read_samples", (*report)["samples"]["read"]},
                 {"damaged_samples", (*report)["samples"]["damaged"].size()}},
                Layout::kRecords);
  return output_.Flush();
}

}  // namespace routing_replay::client
