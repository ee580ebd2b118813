#include "server/store/rocksdb/rocks_damaged_log.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/store/rocksdb/rocks_status.h"

namespace routing_replay::server {
namespace {

constexpr absl::string_view kWhat = "the damaged log cannot be kept";

absl::Status Sync(rocksdb::Env& env, const std::string& directory) {
  std::unique_ptr<rocksdb::Directory> opened;
  rocksdb::Status status = env.NewDirectory(directory, &opened);
  if (status.ok()) status = opened->Fsync();
  return FromRocks(status, kWhat);
}

}  // namespace

bool DamagedLog::noted() const { return env_.FileExists(NotedAt()).ok(); }

bool DamagedLog::gone() const { return env_.FileExists(database_ + "/CURRENT").ok() && LogsIn(database_).empty(); }

std::vector<std::string> DamagedLog::LogsIn(const std::string& directory) const {
  std::vector<std::string> logs;
  env_.GetChildren(directory, &logs).PermitUncheckedError();  // Of a directory that is not there: none.
  std::erase_if(logs, [](const std::string& name) { return !absl::EndsWith(name, ".log"); });
  return logs;
}

absl::Status DamagedLog::Note() const {
  absl::Status status = FromRocks(env_.CreateDirIfMissing(NotedAt()), kWhat);
  if (!status.ok()) return status;
  for (const std::string& log : LogsIn(database_)) {
    const std::string copy = absl::StrCat(NotedAt(), "/", log);
    if (env_.FileExists(copy).ok()) continue;
    status = FromRocks(env_.LinkFile(absl::StrCat(database_, "/", log), copy), kWhat);
    if (!status.ok()) return status;
  }
  status = Sync(env_, NotedAt());
  return status.ok() ? Sync(env_, database_) : status;
}

absl::StatusOr<std::string> DamagedLog::Settle(int64_t now_ms) const {
  if (LogsIn(NotedAt()).empty()) {
    absl::Status status = Forget();
    if (!status.ok()) return status;
    return std::string();
  }
  std::string kept = absl::StrCat(database_, "/damaged-log.", now_ms);
  absl::Status status = FromRocks(env_.RenameFile(NotedAt(), kept), kWhat);
  if (!status.ok()) return status;
  return kept;
}

absl::Status DamagedLog::Forget() const {
  if (!noted()) return absl::OkStatus();
  for (const std::string& log : LogsIn(NotedAt())) {
    absl::Status status = FromRocks(env_.DeleteFile(absl::StrCat(NotedAt(), "/", log)), kWhat);
    if (!status.ok()) return status;
  }
  return FromRocks(env_.DeleteDir(NotedAt()), kWhat);
}

}  // namespace routing_replay::server
