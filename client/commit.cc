#include "client/commit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/appender/append_session.h"
#include "client/call/cancellation.h"
#include "proto/wire/clock.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

ErrorDetail DetailOf(const absl::Status& status) { return GetErrorDetail(status).value_or(ErrorDetail()); }

// Returns true if the rows in the store belong to another attempt or revision, or to other tokens.
bool IsOfAnother(const AppendTrouble& trouble) {
  const Reason reason = DetailOf(trouble.error).reason;
  return reason == Reason::kOldRevision || reason == Reason::kOtherTokens;
}

absl::Status Check(CommitRequest& request) {
  absl::Status status;
  const std::optional<std::vector<uint32_t>>& tokens = request.tokens;
  if (tokens && !request.num_tokens) request.num_tokens = static_cast<int64_t>(tokens->size());
  const int64_t num_tokens = request.num_tokens.value_or(1);
  if (num_tokens < 1) status = Invalid("num_tokens", absl::StrCat("must be at least 1, got ", num_tokens));
  const int64_t given = tokens ? static_cast<int64_t>(tokens->size()) : num_tokens;
  if (status.ok() && given != num_tokens && given != num_tokens - 1) {
    status = Invalid(Reason::kLength, "tokens", absl::StrCat("got ", given, " ids for num_tokens ", num_tokens));
  }
  if (status.ok() && request.attempt.value_or(0) != static_cast<uint32_t>(request.attempt.value_or(0))) {
    status = Invalid("attempt", absl::StrCat("must be in [0, 2^32 - 1], got ", *request.attempt));
  }
  return WithSample(status, request.sample);
}

class Committing {
 public:
  Committing(Run& run, const CommitRequest& request) : run_(run), request_(request) {}

  CommitOutcome Do(absl::Span<const std::shared_ptr<Appender>> appenders, Clock::Time deadline) {
    auto outcome = TryDo(appenders, deadline);
    if (outcome.ok()) return *std::move(outcome);
    return {.sample = request_.sample,
            .committed_rows = rows(),
            .num_tokens = sealed_with(),
            .error = trouble_ ? trouble_->error : outcome.status()};
  }

 private:
  int64_t rows() const { return state_ ? state_->committed_rows : 0; }
  std::optional<int64_t> sealed_with() const { return state_ ? state_->num_tokens : std::nullopt; }

  absl::StatusOr<CommitOutcome> TryDo(absl::Span<const std::shared_ptr<Appender>> appenders, Clock::Time deadline) {
    for (const std::shared_ptr<Appender>& appender : appenders) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::Real().Now());
      RR_ASSIGN_OR_RETURN(auto trouble, appender->Settle(request_.sample, request_.attempt,
                                                         std::max(left, std::chrono::milliseconds(0))));
      trouble_ = Worse(std::move(trouble_), std::move(trouble));
    }
    RR_ASSIGN_OR_RETURN(auto states, run_.StatMany({&request_.sample, 1}));
    if (!states.empty()) state_ = std::move(states.front());

    if (trouble_ && IsOfAnother(*trouble_)) return Told();
    const std::optional<int64_t>& num_tokens = request_.num_tokens;
    if (!request_.attempt && (!num_tokens || (!request_.tokens && state_ && state_->sealed()))) {
      if (state_ && num_tokens && num_tokens != state_->num_tokens) {
        return MakeError(
            absl::StatusCode::kFailedPrecondition,
            absl::StrCat("the sample is sealed with ", *state_->num_tokens, " tokens, expected ", *num_tokens),
            {.reason = Reason::kSealed, .sample = request_.sample});
      }
      return Told();
    }
    if (!state_ && !num_tokens) return Told();
    RR_RETURN_IF_ERROR(KeepCall());
    return Mark();
  }

  // Returns the outcome, if no further request to the store is needed.
  absl::StatusOr<CommitOutcome> Told() const {
    if (state_) return Outcome(rows(), sealed_with());
    return MakeError(absl::StatusCode::kNotFound, absl::StrCat("there is no sample ", request_.sample),
                     {.reason = Reason::kNoSample, .sample = request_.sample});
  }

  // The outcome with these rows in the store. Rows that did not arrive are marked there if the appender marked them, or
  // if the sample is sealed.
  CommitOutcome Outcome(int64_t rows, std::optional<int64_t> num_tokens) const {
    CommitOutcome outcome{.sample = request_.sample,
                          .status = CommitStatus::kCommitted,
                          .committed_rows = rows,
                          .num_tokens = num_tokens};
    if (!trouble_) return outcome;
    const bool marked = !IsOfAnother(*trouble_) && (trouble_->marked || num_tokens);
    outcome.status = marked ? CommitStatus::kMarked : CommitStatus::kMissing;
    outcome.error = trouble_->error;
    return outcome;
  }

  // Marks missing rows. Also called if none is missing, because the server then checks the attempt and the tokens.
  absl::StatusOr<CommitOutcome> Mark() {
    int64_t marked = 0;
    auto said = PutMark(rows(), marked);
    const ErrorDetail detail = DetailOf(said.status());
    if (absl::IsFailedPrecondition(said.status()) && detail.reason == Reason::kGap && request_.num_tokens) {
      said = PutMark(detail.committed_rows.value_or(0), marked);  // The rows in the store belong to an earlier attempt.
    }
    if (!said.ok()) return said.status();
    if (marked > 0 && !trouble_) {
      trouble_ = AppendTrouble{MakeError(absl::StatusCode::kFailedPrecondition, "some rows did not arrive",
                                         {.reason = Reason::kNotCommitted, .sample = request_.sample}),
                               /*marked=*/true};
    }
    return Outcome(said->committed_rows, request_.num_tokens ? request_.num_tokens : sealed_with());
  }

  // With num_tokens: appends all rows after the first `rows` as unrecorded, seals, and sets `marked` to their number.
  // Without: appends no rows, so that the server only makes its checks.
  absl::StatusOr<AppendOutcome> PutMark(int64_t rows, int64_t& marked) {
    AppendOptions options{.sample = request_.sample, .row_start = rows};
    if (request_.attempt) {
      options.attempt = request_.attempt;
    } else if (state_) {
      options.revision = state_->revision;
    }
    marked = 0;
    if (request_.num_tokens) {
      const int64_t end = *request_.num_tokens - 1;
      options.row_start = std::min(rows, end);
      options.seal_num_tokens = request_.num_tokens;
      marked = end - options.row_start;
      if (end > 0 && request_.tokens) options.token_ids = absl::MakeConstSpan(*request_.tokens).first(end);
    }
    return run_.PutUnrecorded(options, marked);
  }

  Run& run_;
  const CommitRequest& request_;
  std::optional<AppendTrouble> trouble_;
  std::optional<SampleState> state_;
};

}  // namespace

const char* CommitStatusName(CommitStatus status) {
  constexpr const char* kNames[] = {"committed", "marked", "missing"};
  return kNames[static_cast<size_t>(status)];
}

absl::StatusOr<CommitOutcome> Commit(Run& run, absl::Span<const std::shared_ptr<Appender>> appenders,
                                     CommitRequest request, std::chrono::milliseconds timeout) {
  RR_RETURN_IF_ERROR(Check(request));
  CommitOutcome outcome = Committing(run, request).Do(appenders, DeadlineAfter(Clock::Real().Now(), timeout));
  if (absl::Status call = CheckCall(); absl::IsCancelled(call)) return call;
  return outcome;
}

}  // namespace routing_replay::client
