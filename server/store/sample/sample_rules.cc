#include "server/store/sample/sample_rules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/sample/attempt.h"
#include "server/store/sample/sample_content.h"

namespace routing_replay::server {

absl::StatusOr<LifeStep> CheckLife(const SampleContent* content, const AppendHeader& header) {
  if (content == nullptr) {
    if (header.restart_nonce != 0 || header.revision == 0) return LifeStep::kOpen;
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("the append is for revision ", header.revision,
                                  " of a sample that does not exist (any more); a new one starts at revision 0"),
                     {.reason = Reason::kOldRevision});
  }
  if (header.restart_nonce == 0 || header.restart_nonce != content->restart_nonce) {
    const std::optional<uint32_t> attempt = AttemptOf(header.restart_nonce);
    const std::optional<uint32_t> present = AttemptOf(content->restart_nonce);
    if (attempt && present && *attempt != *present) {
      if (*attempt > *present) return LifeStep::kRestart;
      return MakeError(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat("the append is of attempt ", *attempt, ", and the sample is at attempt ", *present),
                       {.reason = Reason::kOldRevision, .field = "append.restart_nonce"});
    }
    if (absl::Status status = CheckRevision(*content, header.revision); !status.ok()) return status;
    if (header.restart_nonce != 0 && !(attempt && present)) return LifeStep::kRestart;
  }
  if (header.prefix && header.prefix != content->prefix) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     "append.prefix: the sample exists and was not opened with this prefix",
                     {.reason = Reason::kField, .field = "append.prefix"});
  }
  return LifeStep::kContinue;
}

absl::StatusOr<SampleContent> TakePrefix(const SampleContent& parent, const PrefixReference& prefix) {
  if (prefix.revision != parent.revision) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("append.prefix.revision: ", prefix.revision, ", but ", prefix.sample,
                                  " is at revision ", parent.revision),
                     {.reason = Reason::kOldRevision, .field = "append.prefix.revision"});
  }
  if (prefix.rows > parent.rows()) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("append.prefix.rows: ", prefix.rows, ", but ", prefix.sample, " has ", parent.rows(),
                                  " committed rows"),
                     {.reason = Reason::kNotCommitted, .field = "append.prefix.rows"});
  }
  return parent.Prefix(prefix.rows);
}

absl::StatusOr<SampleContent> NewLife(LifeStep step, const SampleContent* before, const AppendHeader& header,
                                      int32_t block_rows, std::optional<absl::StatusOr<SampleContent>>& prefix) {
  SampleContent life{TokenChecks(block_rows)};
  if (header.prefix) {
    if (!prefix->ok()) return prefix->status();
    life = *std::move(*prefix);
  }
  const bool restart = step == LifeStep::kRestart;
  life.revision = restart ? before->revision + 1 : 0;
  life.restart_nonce = header.restart_nonce;
  life.prefix = header.prefix;
  life.group = restart ? before->group : 0;
  life.engine = header.engine;
  return life;
}

bool KeepsContent(const AppendPlan& plan) { return plan.added.empty() && !plan.seals; }

SampleContent NextContent(const SampleContent& content, bool new_life, const AppendHeader& header,
                          const AppendPlan& plan, ContentIds& ids) {
  SampleContent next = content.WithoutPieces();
  for (RowRange range : plan.unrecorded) AppendMerged(next.unrecorded, range);
  AppendProvenance(next.provenance,
                   {plan.added, header.weight_version, header.weight_label, header.engine, /*appends=*/1});
  if (plan.seals && plan.added.empty()) next.tokens.TellEnd(TokensOf(header));
  next.tokens.Extend(TokensOf(header), plan.token_check);
  if (plan.seals) next.num_tokens = header.seal_num_tokens;
  if (header.group) next.group = *header.group;
  if (new_life || !plan.added.empty()) next.content_id = ids.Next();
  return next;
}

AppendAck AckOf(absl::string_view sample, const SampleContent& content, const AppendPlan& plan) {
  return {.sample = std::string(sample),
          .committed_rows = content.rows(),
          .revision = content.revision,
          .content_id = content.content_id,
          .sealed = content.sealed(),
          .trimmed_rows = plan.trimmed_rows,
          .conflicting_rows = plan.conflicting_rows,
          .late_rows = plan.late_rows,
          .unrecorded_rows = TotalRows(plan.unrecorded),
          .unverified_rows = plan.unverified_rows};
}

absl::Status CheckRevision(const SampleContent& content, int64_t revision) {
  if (revision == content.revision) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("revision ", revision, " is not the sample's, which is ", content.revision),
                   {.reason = Reason::kOldRevision});
}

absl::Status CheckSeal(const SampleContent& content, int64_t num_tokens, int64_t revision) {
  if (absl::Status status = CheckRevision(content, revision); !status.ok()) return status;
  const int64_t rows = content.rows();
  if (content.sealed() && *content.num_tokens != num_tokens) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("the sample is sealed with ", *content.num_tokens, " tokens"),
                     {.reason = Reason::kSealed});
  }
  if (num_tokens < 1 || num_tokens - 1 < rows) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("num_tokens: ", num_tokens, ", but ", rows, " rows are committed"),
                     {.reason = Reason::kRowCount, .field = "num_tokens"});
  }
  if (num_tokens - 1 > rows) {
    ErrorDetail detail{.reason = Reason::kNotCommitted, .field = "num_tokens"};
    detail.missing_rows = {{rows, num_tokens - 1}};
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("rows ", ToString(detail.missing_rows[0]), " are not committed"), detail);
  }
  return absl::OkStatus();
}

SampleContent SealedContent(const SampleContent& content, int64_t num_tokens) {
  SampleContent next = content.WithoutPieces();
  next.num_tokens = num_tokens;
  return next;
}

absl::Status CheckTruncate(const SampleContent& content, int64_t rows, std::optional<int64_t> expected_revision) {
  if (expected_revision) {
    if (absl::Status status = CheckRevision(content, *expected_revision); !status.ok()) return status;
  }
  if (rows < 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("rows: ", rows, " is negative"),
                     {.reason = Reason::kField, .field = "rows"});
  }
  if (rows > content.rows()) {
    return MakeError(absl::StatusCode::kOutOfRange,
                     absl::StrCat("rows: ", rows, " are more than the ", content.rows(), " committed ones"),
                     {.reason = Reason::kNotCommitted, .field = "rows"});
  }
  return absl::OkStatus();
}

SampleContent TruncatedContent(const SampleContent& content, int64_t rows, ContentIds& ids) {
  SampleContent next = content.WithoutPieces();
  next.Truncate(rows);
  ++next.revision;
  next.restart_nonce = EndedNonce(content.restart_nonce);
  next.content_id = ids.Next();
  return next;
}

SampleContent RemainingContent(const SampleContent& content, int64_t acknowledged, ContentIds& ids) {
  SampleContent next = TruncatedContent(content, content.rows(), ids);
  next.lost_end = std::max(acknowledged, content.lost_end);
  return next;
}

void MarkDoubtful(SampleContent& content, int64_t now_ms, ContentIds& ids) {
  content.revision = std::max(content.revision + 1, now_ms);
  content.restart_nonce = EndedNonce(content.restart_nonce);
  content.content_id = ids.Next();
}

absl::Status WithContent(const absl::Status& status, absl::string_view sample, const SampleContent* content) {
  ErrorDetail detail = GetErrorDetail(status).value_or(ErrorDetail{});
  detail.sample = std::string(sample);
  if (content != nullptr) {
    if (!detail.committed_rows) detail.committed_rows = content->rows();
    detail.revision = content->revision;
  }
  return MakeError(status.code(), status.message(), detail);
}

int64_t SnapshotBytes(const SampleContent& content, size_t pieces) {
  constexpr int64_t kCopies = 3;  // The lists as a state, as a record, and as bytes on the way.
  return static_cast<int64_t>(pieces * sizeof(StoredRows)) + kCopies * content.metadata_bytes();
}

SampleState StateOf(const SampleName& name, const SampleContent& content) {
  SampleState state{.sample = name.sample, .handle = name.handle, .producer = name.producer};
  state.group = content.group;
  state.committed_rows = content.rows();
  state.num_tokens = content.num_tokens;
  state.revision = content.revision;
  state.content_id = content.content_id;
  state.unrecorded = content.unrecorded;
  state.weights = WeightSpansOf(content.provenance);
  state.provenance = content.provenance;
  if (const std::optional<uint32_t> check = content.tokens.At(content.rows())) {
    state.token_check = TokenCheck{content.rows(), *check};
  }
  state.engine = content.engine;
  if (content.lost_end > content.rows()) state.lost_end = content.lost_end;
  return state;
}

}  // namespace routing_replay::server
