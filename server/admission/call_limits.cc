#include "server/admission/call_limits.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

constexpr int32_t kRetryAfterMs = 500;

constexpr std::chrono::milliseconds kLookInterval(1000);
constexpr std::chrono::milliseconds kFullLookInterval(100);
constexpr std::chrono::seconds kIdle(2);
// One sixteenth of a run's limit is not available for credit. It covers what appends cost in addition to their payload.
constexpr int64_t kPartNotPromised = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<Place>> ConnectionCalls::Enter(absl::string_view peer) {
  if (absl::StartsWith(peer, "unix:")) return nullptr;
  MutexLock lock(mutex_);
  auto found = calls_.find(peer);
  if (found == calls_.end()) found = calls_.emplace(peer, 0).first;
  if (found->second >= 2 * max_streams_) {
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("max-streams: the connection has ", found->second, " open calls, twice the ",
                                  max_streams_, " that the server announced; wait until some of them end"),
                     {.reason = Reason::kOverBudget, .field = "max-streams"});
  }
  ++found->second;
  return std::make_unique<Place>([this, peer = std::string(peer)] { Leave(peer); });
}

void ConnectionCalls::Leave(const std::string& peer) {
  MutexLock lock(mutex_);
  const auto found = calls_.find(peer);
  if (--found->second == 0) calls_.erase(found);
}

absl::StatusOr<std::unique_ptr<Place>> WaitingRoom::Enter(const std::string& run, int64_t bytes,
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
  const auto waiting = std::make_shared<Waiting>(Waiting{.run = run, .bytes = bytes, .leave = std::move(leave)});
  const auto position = of.waiting.emplace(bytes, waiting.get());
  return std::make_unique<Place>([this, waiting, position] { Leave(*waiting, position); });
}

// Evicts waiting calls of `run` until they have freed `bytes`. The run must hold at least that many.
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
  ErrorDetail detail{.reason = Reason::kOverBudget, .field = "waiting-reads"};
  detail.retry_after_ms = kRetryAfterMs;
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("waiting-reads: the request takes ", bytes, " bytes while it waits, but only ", limit_ - used_,
                   " of ", limit_, " are free; wait for fewer samples at a time, or try again later"),
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

RunQuota::Hold& RunQuota::Hold::operator=(Hold&& other) noexcept {
  if (this == &other) return *this;
  Release();
  quota_ = other.quota_;
  run_ = std::move(other.run_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

RunQuota::Hold RunQuota::Hold::Split(int64_t bytes) {
  bytes_ -= bytes;
  return Hold(quota_, run_, bytes);
}

void RunQuota::Hold::Merge(Hold other) {
  if (bytes_ == 0) {
    *this = std::move(other);
  } else {
    assert(other.bytes_ == 0 || other.run_ == run_);
    bytes_ += std::exchange(other.bytes_, 0);
  }
}

void RunQuota::Hold::Release() {
  if (bytes_ == 0) return;
  MutexLock lock(quota_->mutex_);
  quota_->uses_[run_].held -= std::exchange(bytes_, 0);
}

void RunQuota::Hold::Commit() {
  if (bytes_ == 0) return;
  MutexLock lock(quota_->mutex_);
  Use& use = quota_->uses_[run_];
  use.held -= bytes_;
  use.committed += std::exchange(bytes_, 0);
}

bool RunQuota::BeginLook(absl::string_view run, Clock::Duration interval) {
  MutexLock lock(mutex_);
  ForgetIdle();
  for (auto found = uses_.find(run); found != uses_.end(); found = uses_.find(run)) {
    if (!found->second.looking || found->second.known) break;
    looked_.Wait(mutex_);
  }
  const Clock::Time now = clock_.Now();
  auto found = uses_.find(run);
  if (found == uses_.end()) found = uses_.emplace(run, Use()).first;
  Use& use = found->second;
  if (use.looking || (use.looked && now < *use.looked + interval)) return false;
  use.looking = true;
  use.looked = now;
  use.settling += std::exchange(use.committed, 0);
  return true;
}

void RunQuota::ForgetIdle() {
  const Clock::Time now = clock_.Now();
  if (now < forget_at_) return;
  forget_at_ = now + kIdle;
  std::erase_if(uses_, [&](const auto& entry) {
    const Use& use = entry.second;
    return !use.looking && use.held == 0 && (!use.looked || now >= *use.looked + kIdle);
  });
}

// The store may take long to answer. Meanwhile other threads use its last answer; they wait only for the first one.
bool RunQuota::LookAgain(absl::string_view run, Clock::Duration interval) {
  if (!BeginLook(run, interval)) return false;
  absl::StatusOr<int64_t> stored = stored_(run);
  if (absl::IsNotFound(stored.status())) stored = 0;
  MutexLock lock(mutex_);
  Use& use = uses_.find(run)->second;  // ForgetIdle does not remove an entry that is `looking`.
  use.looking = false;
  looked_.NotifyAll();
  if (!stored.ok()) return false;  // Keeps the old value; the append itself will report the error.
  use.known = true;
  use.stored = *stored;
  use.settling = 0;
  return true;
}

// Admitted bytes count in full, although an append may store fewer. The store's next answer corrects the number, so
// before a run that seems full is rejected, the store is asked again.
absl::StatusOr<RunQuota::Hold> RunQuota::Take(absl::string_view run, int64_t least, int64_t most, int64_t limit) {
  if (limit_ == 0) return Hold();
  LookAgain(run, kLookInterval);
  auto hold = TryTake(run, least, most, limit);
  if (!hold.ok() && LookAgain(run, kFullLookInterval)) hold = TryTake(run, least, most, limit);
  if (!hold.ok()) rejected_();
  return hold;
}

absl::StatusOr<RunQuota::Hold> RunQuota::TryTake(absl::string_view run, int64_t least, int64_t most, int64_t limit) {
  MutexLock lock(mutex_);
  auto found = uses_.find(run);
  const int64_t used = found == uses_.end() ? 0 : found->second.bytes();
  const int64_t left = limit - used;
  if (left <= 0 || least > left) {
    ErrorDetail detail{.reason = Reason::kOverBudget, .field = "run-budget"};
    detail.retry_after_ms = kRetryAfterMs;
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("run-budget: ", most, " more bytes requested for a run that uses ", used, " of ",
                                  limit_, limit < limit_ ? " (credit ends at 15/16 of it)" : "",
                                  "; release samples of this run or try again later"),
                     detail);
  }
  if (found == uses_.end()) found = uses_.emplace(run, Use()).first;
  const int64_t bytes = std::min(most, left);
  found->second.held += bytes;
  return Hold(this, std::string(run), bytes);
}

absl::StatusOr<RunQuota::Hold> RunQuota::Admit(absl::string_view run, int64_t bytes) {
  return Take(run, bytes, bytes, limit_);
}

absl::StatusOr<RunQuota::Hold> RunQuota::AdmitUpTo(absl::string_view run, int64_t bytes) {
  return Take(run, 1, bytes, limit_ - limit_ / kPartNotPromised);
}

}  // namespace routing_replay::server
