// Keeps what repeats from filling the log.
#ifndef SERVER_OPERATIONS_LOG_REPEAT_FILTER_H_
#define SERVER_OPERATIONS_LOG_REPEAT_FILTER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// Of one key one line passes per interval, and the next one says how many were held back. Thread-safe. Keys come from a
// small set: words of this program, never of clients.
class RepeatFilter {
 public:
  // `clock` outlives it.
  RepeatFilter(const Clock& clock, Clock::Duration interval) : clock_(clock), interval_(interval) {}

  // The number held back since the last line of `key`, which are told now; nothing: this one is held back, too.
  std::optional<int64_t> Pass(const std::string& key);
  // The keys whose interval is over with something held back, and how many: as if a line of each had passed now. Call
  // it now and then, so that a burst's count is told although no other line comes.
  std::vector<std::pair<std::string, int64_t>> TakeHeldBack();

 private:
  struct Entry {
    Clock::Time next;
    int64_t held_back = 0;
  };

  const Clock& clock_;
  const Clock::Duration interval_;
  Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_LOG_REPEAT_FILTER_H_
