#include "server/operations/calls/call_journal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

CallTrouble Describe(absl::string_view method, const absl::Status& status) {
  CallTrouble trouble{.method = std::string(method), .code = absl::StatusCodeToString(status.code())};
  const auto detail = GetErrorDetail(status);
  if (detail && detail->reason != Reason::kUnspecified) trouble.reason = ReasonName(detail->reason);
  if (detail) trouble.field = detail->field;
  trouble.failed = IsServersFault(status.code()) && !(detail && detail->reason == Reason::kDraining);
  return trouble;
}

bool SameKind(const CallTrouble& a, const CallTrouble& b) {
  return a.method == b.method && a.code == b.code && a.reason == b.reason && a.field == b.field;
}

}  // namespace

bool IsServersFault(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

void CallJournal::Note(absl::string_view method, const absl::Status& status,
                       const std::function<LogFields()>& identity) {
  CallTrouble trouble = Describe(method, status);
  LogFields fields = {{"method", trouble.method}, {"code", trouble.code}};
  if (!trouble.reason.empty()) fields.emplace_back("reason", trouble.reason);
  if (!trouble.field.empty()) fields.emplace_back("field", trouble.field);
  const std::string key = absl::StrCat(trouble.method, " ", trouble.code, " ", trouble.reason);
  const char* event = trouble.failed ? "call_failed" : "call_refused";
  // A client that goes away is its own affair.
  const bool cancelled = status.code() == absl::StatusCode::kCancelled;
  const LogLevel level = trouble.failed ? LogLevel::kWarning : cancelled ? LogLevel::kDebug : LogLevel::kInfo;
  if (!cancelled) Remember(std::move(trouble));
  if (!IsLogged(level)) return;
  const bool debug = IsLogged(LogLevel::kDebug);
  const auto held_back = debug ? std::make_optional<int64_t>(0) : filter_.Pass(key);
  if (!held_back) return;
  for (auto& field : identity()) fields.push_back(std::move(field));
  if (*held_back > 0) fields.emplace_back("held_back", *held_back);
  LogEvent(level, event, debug ? status.message() : "", fields);
}

void CallJournal::Flush() {
  for (const auto& [key, count] : filter_.TakeHeldBack()) {
    LogEvent(LogLevel::kInfo, "calls_held_back", "more calls ended like one that was told before",
             {{"kind", key}, {"held_back", count}});
  }
}

void CallJournal::Remember(CallTrouble trouble) {
  trouble.last = clock_.TimeOfDay();
  trouble.count = 1;
  MutexLock lock(mutex_);
  const auto found =
      std::find_if(latest_.begin(), latest_.end(), [&](const CallTrouble& known) { return SameKind(known, trouble); });
  if (found != latest_.end()) {
    trouble.count += found->count;
    latest_.erase(found);
  }
  latest_.push_front(std::move(trouble));
  if (latest_.size() > kKinds) latest_.pop_back();
}

std::vector<CallTrouble> CallJournal::Latest() const {
  MutexLock lock(mutex_);
  return {latest_.begin(), latest_.end()};
}

}  // namespace routing_replay::server
