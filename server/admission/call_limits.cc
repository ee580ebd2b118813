#include "server/admission/call_limits.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

constexpr int32_t kRetryAfterMs = 500;

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionCalls::Place>> ConnectionCalls::Enter(absl::string_view peer) {
  if (absl::StartsWith(peer, "unix:")) return nullptr;
  MutexLock lock(mutex_);
  auto found = calls_.find(peer);
  if (found == calls_.end()) found = calls_.emplace(peer, 0).first;
  if (found->second >= 2 * max_streams_) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("max-streams: the connection has ", found->second, " calls open, of ", max_streams_,
                                  " that it may have"),
                     {.reason = Reason::kOverBudget, .field = "max-streams"});
  }
  ++found->second;
  return std::make_unique<Place>(*this, std::string(peer));
}

void ConnectionCalls::Leave(const std::string& peer) {
  MutexLock lock(mutex_);
  const auto found = calls_.find(peer);
  if (--found->second == 0) calls_.erase(found);
}

absl::StatusOr<std::unique_ptr<WaitingRoom::Place>> WaitingRoom::Enter(const std::string& run, int64_t bytes,
                                                                       std::function<void()> leave) {
  MutexLock lock(mutex_);
  if (const int64_t missing = used_ + bytes - limit_; missing > 0) {
    const auto own = runs_.find(run);
    const int64_t own_bytes = bytes + (own == runs_.end() ? 0 : own->second.bytes);
    const auto most = std::max_element(runs_.begin(), runs_.end(),
                                       [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    if (most == runs_.end() || most == own || most->second.bytes - missing < own_bytes) return Full(bytes);
    SendAway(most->second, missing);
    if (most->second.waiting.empty()) runs_.erase(most);
  }
  Add(bytes);
  Run& of = runs_[run];
  of.bytes += bytes;
  auto waiting = std::make_unique<Waiting>(Waiting{.run = run, .bytes = bytes, .leave = std::move(leave)});
  const auto position = of.waiting.emplace(bytes, waiting.get());
  return std::make_unique<Place>(*this, std::move(waiting), position);
}

// `bytes` at least, of which the run has as many.
void WaitingRoom::SendAway(Run& run, int64_t bytes) {
  while (bytes > 0) {
    auto next = run.waiting.lower_bound(bytes);
    if (next == run.waiting.end()) next = run.waiting.lower_bound(run.waiting.rbegin()->first);
    Waiting& leaving = *next->second;
    run.waiting.erase(next);
    run.bytes -= leaving.bytes;
    Add(-leaving.bytes);
    bytes -= leaving.bytes;
    leaving.is_sent_away = true;
    leaving.leave();
  }
}

absl::Status WaitingRoom::Full(int64_t bytes) const {
  ErrorDetail detail{.reason = Reason::kOverBudget, .field = kWaitingReads};
  detail.retry_after_ms = kRetryAfterMs;
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat(kWaitingReads, ": the request takes ", bytes, " bytes while it waits, and ", limit_ - used_, " of ",
                   limit_, " are free; wait for fewer samples at a time, or try again later"),
      detail);
}

void WaitingRoom::Leave(const Waiting& waiting, BySize::iterator position) {
  MutexLock lock(mutex_);
  if (waiting.is_sent_away) return;
  Add(-waiting.bytes);
  const auto run = runs_.find(waiting.run);
  run->second.bytes -= waiting.bytes;
  run->second.waiting.erase(position);
  if (run->second.waiting.empty()) runs_.erase(run);
}

void WaitingRoom::Add(int64_t bytes) {
  used_ += bytes;
  tell_(used_);
}

}  // namespace routing_replay::server
