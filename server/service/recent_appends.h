// What was acknowledged last, so that an append that is sent again does not bring back a sample that is gone since.
#ifndef SERVER_SERVICE_RECENT_APPENDS_H_
#define SERVER_SERVICE_RECENT_APPENDS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "absl/strings/string_view.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// Of appends with a resend_key; some 6 MB at most. Thread-safe.
class RecentAppends {
 public:
  static constexpr size_t kCapacity = 65'536;

  // The ack of this very append, if it is among the last ones: without append_id and sample.
  std::optional<AppendAck> Find(absl::string_view run, const AppendHeader& header) const;
  // An append that was acknowledged with `ack`.
  void Add(absl::string_view run, const AppendHeader& header, const AppendAck& ack);

 private:
  struct Known {
    int64_t committed_rows = 0;
    int64_t revision = 0;
    uint64_t content_id = 0;
    bool sealed = false;
  };

  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Known> known_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint64_t> order_ ABSL_GUARDED_BY(mutex_);  // Its keys, the oldest first.
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_RECENT_APPENDS_H_
