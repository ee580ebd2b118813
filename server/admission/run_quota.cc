#include "server/admission/run_quota.h"

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

constexpr std::chrono::seconds kLookInterval(1);
constexpr int32_t kRetryAfterMs = 500;

absl::Status OverQuota(const char* limit, absl::string_view what) {
  ErrorDetail detail{.reason = Reason::kOverBudget, .field = limit};
  detail.retry_after_ms = kRetryAfterMs;
  return MakeError(absl::StatusCode::kResourceExhausted, absl::StrCat(limit, ": ", what), detail);
}

}  // namespace

void RunQuota::LookAgain() {
  if (clock_.Now() < look_after_) return;
  look_after_ = clock_.Now() + kLookInterval;
  auto stored = stored_();
  if (!stored.ok()) return;  // As it was; the appends themselves will say what is wrong.
  bytes_.clear();
  for (auto& [run, bytes] : *stored) bytes_[run] = bytes;
}

absl::Status RunQuota::Admit(absl::string_view run, int64_t bytes) {
  if (limits_.bytes == 0 || bytes == 0) return absl::OkStatus();
  MutexLock lock(mutex_);
  LookAgain();
  auto found = bytes_.find(run);
  const int64_t used = found == bytes_.end() ? 0 : found->second;
  if (bytes > limits_.bytes - used) {
    return OverQuota(kRunBudget, absl::StrCat(bytes, " bytes more for a run that has ", used, " of ", limits_.bytes,
                                              "; release samples of it or try again later"));
  }
  if (found == bytes_.end()) found = bytes_.emplace(run, 0).first;
  found->second += bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RunQuota::Stream>> RunQuota::Open(absl::string_view run) {
  if (limits_.streams == 0) return nullptr;
  MutexLock lock(mutex_);
  auto found = streams_.find(run);
  if (found == streams_.end()) found = streams_.emplace(run, 0).first;
  if (found->second >= limits_.streams) {
    return OverQuota(kRunStreams, absl::StrCat("the run has ", limits_.streams, " streams open already"));
  }
  ++found->second;
  return std::make_unique<Stream>(*this, std::string(run));
}

void RunQuota::Close(const std::string& run) {
  MutexLock lock(mutex_);
  const auto found = streams_.find(run);
  if (--found->second == 0) streams_.erase(found);
}

}  // namespace routing_replay
