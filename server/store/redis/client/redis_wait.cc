#include "server/store/redis/client/redis_wait.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

// Long waits are cut, so that a clock that was moved is looked at again.
constexpr std::chrono::milliseconds kLongestPoll(1000);

int PollTimeout(const RedisWait& wait) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(wait.deadline - wait.clock->Now());
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), kLongestPoll).count());
}

}  // namespace

absl::Status WaitForSockets(absl::Span<pollfd> sockets, const RedisWait& wait) {
  std::vector<pollfd> all(sockets.begin(), sockets.end());
  all.push_back({wait.interrupt_fd, POLLIN, 0});  // poll passes over an fd of -1.
  while (true) {
    const int timeout = PollTimeout(wait);
    const int ready = poll(all.data(), all.size(), timeout);
    if (ready > 0) break;
    if (ready < 0 && errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", std::strerror(errno)));
    if (ready == 0 && timeout == 0) return absl::DeadlineExceededError("the deadline passed while waiting for Redis");
  }
  if (all.back().revents != 0) return absl::CancelledError("interrupted while waiting for Redis");
  std::copy(all.begin(), all.end() - 1, sockets.begin());
  return absl::OkStatus();
}

}  // namespace routing_replay::server
