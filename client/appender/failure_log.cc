#include "client/appender/failure_log.h"

#include "absl/strings/str_cat.h"
#include "client/log.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {

namespace {

// Lines in so much time.
constexpr int kLines = 20;
constexpr std::chrono::seconds kPeriod(10);

}  // namespace

void FailureLog::Add(absl::string_view sample, const absl::Status& why, Clock::Time now) {
  if (lines_ == 0 || now - since_ >= kPeriod) {
    TellRest();
    since_ = now;
    lines_ = 0;
  }
  if (lines_ == kLines) {
    ++rest_;
    return;
  }
  ++lines_;
  const Reason reason = GetErrorDetail(why).value_or(ErrorDetail()).reason;
  Log(absl::StrCat("run ", run_, ": an append of sample ", sample, " failed: ", absl::StatusCodeToString(why.code()),
                   reason == Reason::kUnspecified ? "" : absl::StrCat(" (", ReasonName(reason), ")"), ": ",
                   why.message()));
}

void FailureLog::TellRest() {
  if (rest_ > 0) Log(absl::StrCat("run ", run_, ": appends of ", rest_, " more samples failed"));
  rest_ = 0;
}

}  // namespace routing_replay::client
