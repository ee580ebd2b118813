#include "client/shard/answers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/shard/errors.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

std::optional<size_t> First(absl::Span<const AnswerKind> answers, AnswerKind kind) {
  const auto found = std::find(answers.begin(), answers.end(), kind);
  if (found == answers.end()) return std::nullopt;
  return static_cast<size_t>(found - answers.begin());
}

}  // namespace

AnswerKind KindOf(const absl::Status& status) {
  if (status.ok()) return AnswerKind::kGood;
  if (IsNoRun(status)) return AnswerKind::kNoRun;
  return IsUnreachable(status) ? AnswerKind::kUnreachable : AnswerKind::kRefused;
}

JointAnswer JudgeAnswers(absl::Span<const AnswerKind> answers, Needed needed) {
  if (const auto refused = First(answers, AnswerKind::kRefused)) return {.failed = refused};
  const bool any = First(answers, AnswerKind::kGood).has_value();
  const auto unreachable = First(answers, AnswerKind::kUnreachable);
  if (unreachable && !(any && needed == Needed::kThoseThatAnswer)) return {.failed = unreachable};
  const auto without = First(answers, AnswerKind::kNoRun);
  if (!any) return {.failed = without};
  if (without && needed == Needed::kAll) return {.failed = without, .lost = true};
  return {};
}

absl::Status LostRunError(const std::string& endpoint) {
  return MakeError(absl::StatusCode::kDataLoss,
                   absl::StrCat("server ", endpoint, ": the run is not there any more, though on others of the list; ",
                                "what was there is gone. Open the run with its geometry, which makes it there again, ",
                                "and restore what is missing from a checkpoint"),
                   {.reason = Reason::kNoRun});
}

}  // namespace routing_replay::client
