// The copy of a write-ahead log that cannot be read to its end. Opening the database without the rest takes the log
// away, so what is known of the damage must be on the disk before.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_DAMAGED_LOG_H_
#define SERVER_STORE_ROCKSDB_ROCKS_DAMAGED_LOG_H_

#include <rocksdb/env.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace routing_replay::server {

// One per database, by whoever opens it, before and after. `env` outlives it. Errors as FromRocks.
class DamagedLog {
 public:
  DamagedLog(rocksdb::Env& env, std::string database) : env_(env), database_(std::move(database)) {}

  // Whether damage was noted and not yet settled: by this process, or by one that ended between the two.
  bool noted() const;
  // Whether the directory holds a database without any log, which an open one always has.
  bool gone() const;
  // Gives each log a second name in a directory of its own, which takes no room. On the disk when it returns.
  absl::Status Note() const;
  // What the damage means for the samples is in the database now. The directory with the logs has another name from
  // then on, with `now_ms`, and is for people; empty if there was no log.
  absl::StatusOr<std::string> Settle(int64_t now_ms) const;
  // There was none, or what was in the log was not needed.
  absl::Status Forget() const;

 private:
  std::vector<std::string> LogsIn(const std::string& directory) const;
  std::string NotedAt() const { return database_ + "/damaged-log.new"; }

  rocksdb::Env& env_;
  const std::string database_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_DAMAGED_LOG_H_
