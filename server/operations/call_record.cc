#include "server/operations/call_record.h"

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
  trouble.failed = IsServersFault(status);
  return trouble;
}

bool SameKind(const CallTrouble& a, const CallTrouble& b) {
  return a.method == b.method && a.code == b.code && a.reason == b.reason && a.field == b.field;
}

}  // namespace

void CallJournal::Note(absl::string_view method, const absl::Status& status,
                       const std::function<LogFields()>& identity) {
  CallTrouble trouble = Describe(method, status);
  LogFields fields = {{"method", trouble.method}, {"code", trouble.code}};
  if (!trouble.reason.empty()) fields.emplace_back("reason", trouble.reason);
  if (!trouble.field.empty()) fields.emplace_back("field", trouble.field);
  const std::string key = absl::StrCat(trouble.method, " ", trouble.code, " ", trouble.reason);
  const char* event = trouble.failed ? "call_failed" : "call_rejected";
  // A cancelled call is not a problem of the server, so it is logged only at the level debug.
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

CallRecord::CallRecord(CallBook& book, absl::string_view method, const Caller& caller)
    : book_(book), method_(method), caller_(caller), began_(book.clock.Now()) {
  book_.metrics.BeginCall(method_);
}

CallRecord::~CallRecord() { End(absl::CancelledError("the call ended without an answer")); }

void CallRecord::End(const absl::Status& status) {
  if (ended_) return;
  ended_ = true;
  const Clock::Duration took = book_.clock.Now() - began_;
  book_.metrics.EndCall(method_, status.code(), took);
  if (!status.ok()) return Reject(status);
  if (!IsLogged(LogLevel::kDebug)) return;
  LogFields fields = Identity();
  fields.emplace_back("method", std::string(method_));
  fields.emplace_back("took_us", std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  LogEvent(LogLevel::kDebug, "call", "", fields);
}

void CallRecord::Reject(const absl::Status& status) {
  book_.journal.Note(method_, status, [this] { return Identity(); });
}

void CallRecord::Audit(const char* action, absl::string_view run, const absl::Status& status,
                       const LogFields& what) const {
  LogFields fields = {{"action", action}, {"run", std::string(run)}, {"code", absl::StatusCodeToString(status.code())}};
  fields.insert(fields.end(), what.begin(), what.end());
  const LogFields who = Identity();
  fields.insert(fields.end(), who.begin(), who.end());
  LogEvent(LogLevel::kInfo, "audit", "", fields);
}

LogFields CallRecord::Identity() const {
  LogFields fields = {{"peer", caller_.peer}};
  if (!caller_.certificate_names.empty()) fields.emplace_back("client", caller_.certificate_names);
  std::string token = book_.access.NameOf(caller_.authorization);
  if (!token.empty()) fields.emplace_back("token", std::move(token));
  return fields;
}

}  // namespace routing_replay::server
