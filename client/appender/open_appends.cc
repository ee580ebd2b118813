#include "client/appender/open_appends.h"

#include <utility>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {

SampleAttempt KeyOf(const AppendPlan& plan) {
  const AppendHeader& header = plan.pieces.front().header;
  return {header.sample, AttemptOf(header.restart_nonce)};
}

std::optional<AppendTrouble> Worse(std::optional<AppendTrouble> one, std::optional<AppendTrouble> other) {
  if (!one || !other) return one ? one : other;
  return one->marked && !other->marked ? other : one;
}

void OpenAppends::Add(uint64_t sequence, SampleAttempt key, bool dropped) {
  if (const auto trouble = trouble_of_.find(key); trouble != trouble_of_.end() && trouble->second->told) {
    Forget(trouble->second);
  }
  if (dropped) {
    Note(key, {MakeError(absl::StatusCode::kResourceExhausted, "the queue was full, and rows were dropped",
                         {.reason = Reason::kOverBudget, .sample = key.sample}),
               /*marked=*/true});
  }
  ++counts_[key];
  keys_.emplace(sequence, std::move(key));
}

bool OpenAppends::Finish(uint64_t sequence, const AppendOutcome& outcome) {
  const auto found = keys_.find(sequence);
  if (found == keys_.end()) return false;
  const SampleAttempt key = std::move(found->second);
  keys_.erase(found);
  if (const auto count = counts_.find(key); --count->second == 0) counts_.erase(count);
  if (outcome.status.ok()) return false;
  Note(key, {outcome.status, /*marked=*/false});
  const auto detail = GetErrorDetail(outcome.status);
  // Of another field: the sample has no attempts, or was truncated, and rows are lost that nothing newer replaces.
  return key.attempt && detail && detail->reason == Reason::kOldRevision && detail->field == "append.restart_nonce";
}

void OpenAppends::Note(const SampleAttempt& key, AppendTrouble trouble) {
  if (const auto known = trouble_of_.find(key); known != trouble_of_.end()) {
    Remembered& before = *known->second;
    before.trouble = *Worse(std::move(before.trouble), std::move(trouble));
    before.told = false;
    return;
  }
  if (troubles_.size() >= remembered_) Forget(troubles_.begin());
  trouble_of_[key] = troubles_.insert(troubles_.end(), {key, std::move(trouble)});
}

void OpenAppends::Forget(Troubles::iterator trouble) {
  trouble_of_.erase(trouble->key);
  troubles_.erase(trouble);
}

std::optional<AppendTrouble> OpenAppends::TellTrouble(const SampleAttempt& key) {
  const auto found = trouble_of_.find(key);
  if (found == trouble_of_.end()) return std::nullopt;
  found->second->told = true;
  return found->second->trouble;
}

}  // namespace routing_replay::client
