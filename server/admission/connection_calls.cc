#include "server/admission/connection_calls.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {

absl::StatusOr<std::unique_ptr<ConnectionCalls::Place>> ConnectionCalls::Enter(absl::string_view peer) {
  if (absl::StartsWith(peer, "unix:")) return nullptr;
  MutexLock lock(mutex_);
  auto found = calls_.find(peer);
  if (found == calls_.end()) found = calls_.emplace(peer, 0).first;
  if (found->second >= 2 * max_streams_) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("max-streams: the connection has ", found->second, " calls open, of ", max_streams_,
                                  " that it may have"),
                     {.reason = Reason::kOverBudget, .field = kMaxStreams});
  }
  ++found->second;
  return std::make_unique<Place>(*this, std::string(peer));
}

void ConnectionCalls::Leave(const std::string& peer) {
  MutexLock lock(mutex_);
  const auto found = calls_.find(peer);
  if (--found->second == 0) calls_.erase(found);
}

}  // namespace routing_replay::server
