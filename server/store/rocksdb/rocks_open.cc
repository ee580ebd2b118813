#include "server/store/rocksdb/rocks_open.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/rocksdb/rocks_status.h"

namespace routing_replay::server {
namespace {

rocksdb::Status Open(const std::string& path, const rocksdb::Options& options, rocksdb::WALRecoveryMode mode,
                     OpenedDatabase& opened) {
  rocksdb::DBOptions database(options);
  database.wal_recovery_mode = mode;
  std::vector<std::string> names;
  if (!rocksdb::DB::ListColumnFamilies(database, path, &names).ok()) names = {rocksdb::kDefaultColumnFamilyName};
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  descriptors.reserve(names.size());
  for (const std::string& name : names) descriptors.emplace_back(name, options);
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(database, path, descriptors, &handles, &db);
  if (!status.ok()) return status;
  opened.db.reset(db);
  for (size_t i = 0; i < names.size(); ++i) {
    auto family = std::make_shared<RocksFamily>(opened.db, handles[i]);
    if (names[i] == rocksdb::kDefaultColumnFamilyName) {
      opened.by_default = std::move(family);
    } else {
      opened.families[names[i]] = std::move(family);
    }
  }
  return status;
}

constexpr absl::string_view kPutBack = "put a copy of the directory back, or begin with an empty one";

// What to do, before RocksDB's own words.
std::string Advice(const rocksdb::Status& status) {
  // RocksDB has no code for it.
  if (status.IsIOError() && absl::StrContains(status.ToString(), "lock ")) return " is open in another process";
  if (status.IsCorruption()) return absl::StrCat(" has files that are damaged or missing; ", kPutBack);
  return "";
}

absl::Status Missing(const std::string& path, absl::string_view file) {
  return MakeError(absl::StatusCode::kDataLoss, absl::StrCat("rocksdb:", path, " has no ", file, "; ", kPutBack),
                   {.reason = Reason::kChecksum});
}

// DATA_LOSS if what tells which files are the database is not there, and they are. RocksDB would make a new database
// and take them away. (A process that was killed while it made one left none of them.)
absl::Status CheckIsWhole(rocksdb::Env& env, const std::string& path) {
  std::string manifest;
  if (rocksdb::ReadFileToString(&env, path + "/CURRENT", &manifest).ok()) {
    absl::StripAsciiWhitespace(&manifest);
    return env.FileExists(absl::StrCat(path, "/", manifest)).IsNotFound() ? Missing(path, manifest) : absl::OkStatus();
  }
  std::vector<std::string> names;
  env.GetChildren(path, &names).PermitUncheckedError();  // Of a directory that is not there: none.
  const bool headless = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return absl::EndsWith(name, ".sst") || absl::EndsWith(name, ".blob") || absl::EndsWith(name, ".log");
  });
  return headless ? Missing(path, "CURRENT") : absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpenedDatabase> OpenDatabase(const std::string& path, const rocksdb::Options& options,
                                            const DamagedLog& log) {
  // RocksDB makes it, too, but warns that it is not there. Where it cannot be made, RocksDB says why.
  std::error_code ignored;
  std::filesystem::create_directory(path, ignored);
  if (absl::Status whole = CheckIsWhole(*options.env, path); !whole.ok()) return whole;
  const bool noted_before = log.noted();
  if (log.gone()) {
    if (absl::Status status = log.Note(); !status.ok()) return status;
  }
  OpenedDatabase opened;
  rocksdb::Status status = Open(path, options, rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords, opened);
  if (status.IsCorruption()) {
    if (absl::Status noted = log.Note(); !noted.ok()) return noted;
    // A point in time is not to be had where the rows of one run went to files since and those of another did not.
    for (const auto mode :
         {rocksdb::WALRecoveryMode::kPointInTimeRecovery, rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords}) {
      if (status.IsCorruption()) status = Open(path, options, mode, opened);
    }
  }
  if (status.ok()) return opened;
  if (!noted_before) log.Forget().IgnoreError();  // What is left of it makes revisions new for nothing, no more.
  return FromRocks(status, absl::StrCat("rocksdb:", path, Advice(status)));
}

}  // namespace routing_replay::server
