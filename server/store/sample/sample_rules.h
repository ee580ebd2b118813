// The rules of a sample's life, as functions of its content: what every store applies to what it holds, and then keeps
// in its own way. Nothing here knows where a content or its blocks live.
//
//   append    CheckLife ─▶ (NewLife) ─▶ PlanAppend ─▶ NextContent + PieceChange ─▶ the store keeps both ─▶ AckOf
//   seal      CheckSeal ─▶ SealedContent + PieceChange ─▶ …
//   truncate  CheckTruncate ─▶ TruncatedContent ─▶ …
//
// Contents that are made here have no pieces, but for NewLife's. Pure; thread-safe.
#ifndef SERVER_STORE_SAMPLE_SAMPLE_RULES_H_
#define SERVER_STORE_SAMPLE_SAMPLE_RULES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/message/append_message.h"
#include "routing_replay/wire/sample_state.h"
#include "server/store/sample/append_plan.h"
#include "server/store/sample/content_ids.h"
#include "server/store/sample/sample_content.h"

namespace routing_replay::server {

// What an append does to the life of its sample.
enum class LifeStep { kContinue, kOpen, kRestart };

// `content`: null if there is no such sample. A nonce of an attempt (attempt.h) goes before the revision where the life
// is another attempt's: a later one restarts, an earlier one is refused. FAILED_PRECONDITION (kOldRevision; kField: it
// was not opened with this prefix).
absl::StatusOr<LifeStep> CheckLife(const SampleContent* content, const AppendHeader& header);

// What a child may take of `parent`, whose id is prefix.sample. FAILED_PRECONDITION (kOldRevision, kNotCommitted).
absl::StatusOr<SampleContent> TakePrefix(const SampleContent& parent, const PrefixReference& prefix);

// The content that the append begins with. `before`: of the life that kRestart ends. `prefix`: what TakePrefix gave,
// or an error that is given back; required, and used up, where the header names a prefix.
absl::StatusOr<SampleContent> NewLife(LifeStep step, const SampleContent* before, const AppendHeader& header,
                                      int32_t block_rows, std::optional<absl::StatusOr<SampleContent>>& prefix);

// Whether the plan leaves a content as it is, but for its group.
bool KeepsContent(const AppendPlan& plan);
// What follows `content`, which is a NewLife where `new_life` says so.
SampleContent NextContent(const SampleContent& content, bool new_life, const AppendHeader& header,
                          const AppendPlan& plan, ContentIds& ids);
// `content` as it is once the plan is carried out.
AppendAck AckOf(absl::string_view sample, const SampleContent& content, const AppendPlan& plan);

// FAILED_PRECONDITION (kOldRevision).
absl::Status CheckRevision(const SampleContent& content, int64_t revision);

// Whether the sample may be sealed; to seal it again as it is sealed may be. FAILED_PRECONDITION (kOldRevision;
// kSealed; kNotCommitted with missing_rows), INVALID_ARGUMENT (kRowCount).
absl::Status CheckSeal(const SampleContent& content, int64_t num_tokens, int64_t revision);
SampleContent SealedContent(const SampleContent& content, int64_t num_tokens);

// FAILED_PRECONDITION (kOldRevision), INVALID_ARGUMENT (kField), OUT_OF_RANGE (kNotCommitted).
absl::Status CheckTruncate(const SampleContent& content, int64_t rows, std::optional<int64_t> expected_revision);
SampleContent TruncatedContent(const SampleContent& content, int64_t rows, ContentIds& ids);

// What is left of a content that was there with rows up to `acknowledged`. Whoever wrote or read that one learns of it
// by the revision.
SampleContent RemainingContent(const SampleContent& content, int64_t acknowledged, ContentIds& ids);
// Of a content after which others may have been acknowledged that are lost. `now_ms`, the time of day, becomes its
// revision: above all that those can have had. A seal stays: the rows under it are whole.
void MarkDoubtful(SampleContent& content, int64_t now_ms, ContentIds& ids);

// `status` with the sample, its committed rows and its revision in the detail. `content`: null if there is none.
absl::Status WithContent(const absl::Status& status, absl::string_view sample, const SampleContent* content);

struct SampleName {
  std::string sample;
  int64_t handle = 0;
  Producer producer = Producer::kRollout;
};
// What a snapshot of so many pieces takes, and the record that a reader gets of it, about.
int64_t SnapshotBytes(const SampleContent& content, size_t pieces);
// All but stored_bytes and idle_ms.
SampleState StateOf(const SampleName& name, const SampleContent& content);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_SAMPLE_RULES_H_
