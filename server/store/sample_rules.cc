#include "server/store/sample_rules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

// Memory of a sample without its content: the object, its name (id and handle) and its entries in the index.
constexpr int64_t kSampleOverhead = 1024;
// Memory of one weight span with the longest label.
constexpr int64_t kWeightSpanBytes = sizeof(WeightSpan) + 128;

bool SameWeights(const WeightSpan& a, const WeightSpan& b) { return a.version == b.version && a.label == b.label; }

absl::Status OtherTokens(int64_t window, int64_t row, absl::string_view what) {
  ErrorDetail detail{.reason = Reason::kOtherTokens, .field = "append.token_ids"};
  detail.row = row;
  detail.first_differing_block = window;
  return MakeError(absl::StatusCode::kAlreadyExists,
                   absl::StrCat("the sample already has another trajectory: ", what, " in block ", window,
                                "; use another sample id, or restart the sample"),
                   detail);
}

// Compares tokens. Rows whose tokens both sides know, but cannot be compared, count as other tokens if routes differ.
absl::StatusOr<TokenComparison> CompareTokens(const RunInfo& run, const SampleContent& content,
                                              const AppendHeader& header, absl::Span<const Block> blocks) {
  TokenComparison tokens = content.tokens.Compare(TokensOf(header));
  if (tokens.differs_at) {
    const int64_t rows = *tokens.differs_at;
    return OtherTokens(content.tokens.WindowOf(rows), rows, absl::StrCat("the tokens before row ", rows, " differ"));
  }
  for (RowRange suspect : tokens.suspect) {
    RR_ASSIGN_OR_RETURN(RowDifferences routes, CompareRows(*run.geometry, content.pieces, blocks, suspect));
    if (routes.rows == 0) continue;
    return OtherTokens(routes.first_row / run.options.block_rows, routes.first_row,
                       absl::StrCat("tokens cannot be verified and routes differ, first in row ", routes.first_row));
  }
  return tokens;
}

absl::Status CompareOverlap(const RunInfo& run, const SampleContent& content, const AppendHeader& header,
                            absl::Span<const Block> blocks, RowRange overlap, AppendPlan& plan) {
  RR_ASSIGN_OR_RETURN(TokenComparison tokens, CompareTokens(run, content, header, blocks));
  RR_ASSIGN_OR_RETURN(RowDifferences routes, CompareRows(*run.geometry, content.pieces, blocks, overlap));
  if (routes.rows > 0 && run.options.strict) {
    ErrorDetail detail{.reason = Reason::kConflictingRows};
    detail.row = routes.first_row;
    return MakeError(absl::StatusCode::kAlreadyExists,
                     absl::StrCat(routes.rows, " committed rows have other expert ids, the first is row ",
                                  routes.first_row, "; this run is strict and rejects that"),
                     detail);
  }
  plan.token_check = tokens.check_at_end;
  plan.trimmed_rows = overlap.size();
  plan.conflicting_rows = routes.rows;
  plan.unverified_rows = TotalRows(tokens.unverified);
  for (RowRange hole : Clip(content.unrecorded, overlap)) {
    plan.late_rows += TotalRows(Subtract(hole, header.unrecorded));
  }
  return absl::OkStatus();
}

absl::Status CheckSealed(const SampleContent& content, const AppendHeader& header) {
  if (!content.sealed()) return absl::OkStatus();
  const bool past = !header.rows.empty() && header.rows.end > content.rows();
  const bool other = header.seal_num_tokens && *header.seal_num_tokens != *content.num_tokens;
  if (!past && !other) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("the sample is sealed with ", *content.num_tokens, " tokens"),
                   {.reason = Reason::kSealed});
}

absl::Status CheckGap(const SampleContent& content, const AppendHeader& header) {
  if (header.rows.begin <= content.rows()) return absl::OkStatus();
  ErrorDetail detail{.reason = Reason::kGap};
  detail.committed_rows = content.rows();
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("rows ", ToString(RowRange{content.rows(), header.rows.begin}),
                                " are missing: the append starts at row ", header.rows.begin, ", but only ",
                                content.rows(), " rows are committed"),
                   detail);
}

absl::Status CheckSealLength(const AppendHeader& header, int64_t rows_after) {
  if (!header.seal_num_tokens || *header.seal_num_tokens - 1 == rows_after) return absl::OkStatus();
  return Invalid(Reason::kRowCount, "append.seal_num_tokens",
                 absl::StrCat(*header.seal_num_tokens, " tokens need ", *header.seal_num_tokens - 1, " rows, but ",
                              rows_after, " would be committed"));
}

// Rejects an append that would make the sample's list of unrecorded ranges or of weight spans too long. The lists are
// part of every answer about the sample, of every record of a read and of every stored head, so they must stay short.
absl::Status CheckLists(const SampleContent& content, const AppendHeader& header, const AppendPlan& plan) {
  const auto too_many = [](const char* field, size_t most, absl::string_view what) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat(field, ": a sample has at most ", most, " ", what, ", and this append would exceed that"),
        {.reason = Reason::kLength, .field = field});
  };
  const bool joined = !plan.unrecorded.empty() && !content.unrecorded.empty() &&
                      content.unrecorded.back().end == plan.unrecorded.front().begin;
  if (content.unrecorded.size() + plan.unrecorded.size() - joined > kMaxUnrecordedRanges) {
    return too_many("append.unrecorded", kMaxUnrecordedRanges, "ranges of unrecorded rows");
  }
  const bool other = !plan.added.empty() && !content.weights.empty() &&
                     !SameWeights(content.weights.back(), {plan.added, header.weight_version, header.weight_label});
  if (other && content.weights.size() >= kMaxWeightSpans) {
    return too_many("append.weight_version", kMaxWeightSpans, "changes of the weight version");
  }
  return absl::OkStatus();
}

}  // namespace

void AppendWeights(std::vector<WeightSpan>& list, WeightSpan next) {
  if (next.rows.empty()) return;
  if (list.empty() || !SameWeights(list.back(), next)) {
    list.push_back(std::move(next));
  } else {
    list.back().rows.end = next.rows.end;
  }
}

void TruncateWeights(std::vector<WeightSpan>& list, int64_t rows) {
  while (!list.empty() && list.back().rows.begin >= rows) list.pop_back();
  if (!list.empty()) list.back().rows.end = std::min(list.back().rows.end, rows);
}

int64_t SampleFacts::AppendBytes(int64_t windows, size_t ranges) {
  const SampleFacts nothing{TokenChecks(/*block_rows=*/1)};
  return kSampleOverhead + nothing.growth_bytes(windows, ranges);
}

int64_t SampleFacts::growth_bytes(int64_t end, size_t ranges) const {
  return kWeightSpanBytes + static_cast<int64_t>(ranges * sizeof(RowRange)) + tokens.growth_bytes(end);
}

int64_t SampleFacts::metadata_bytes() const {
  return kSampleOverhead + static_cast<int64_t>(weights.size()) * kWeightSpanBytes +
         static_cast<int64_t>(unrecorded.size() * sizeof(RowRange)) + tokens.memory_bytes();
}

std::vector<RowPiece> SampleContent::Truncate(int64_t rows) {
  num_tokens.reset();
  unrecorded = Clip(unrecorded, {0, rows});
  TruncateWeights(weights, rows);
  tokens.Truncate(rows);
  return pieces.Truncate(rows);
}

SampleContent SampleContent::Prefix(int64_t rows) const {
  SampleContent child(tokens);
  child.unrecorded = Clip(unrecorded, {0, rows});
  child.weights = weights;
  TruncateWeights(child.weights, rows);
  child.tokens.Truncate(rows);
  child.pieces = pieces.Prefix(rows);
  return child;
}

AppendTokens TokensOf(const AppendHeader& header) {
  return {header.rows,
          {reinterpret_cast<const uint8_t*>(header.token_ids.data()), header.token_ids.size()},
          header.token_check_start};
}

absl::StatusOr<AppendPlan> PlanAppend(const RunInfo& run, const SampleContent& content, const AppendHeader& header,
                                      absl::Span<const Block> blocks) {
  AppendPlan plan;
  const RowRange overlap = Intersect(header.rows, {0, content.rows()});
  RR_RETURN_IF_ERROR(CompareOverlap(run, content, header, blocks, overlap, plan));
  for (auto check : {CheckSealed, CheckGap}) {
    RR_RETURN_IF_ERROR(check(content, header));
  }
  plan.added = {content.rows(), std::max(content.rows(), header.rows.end)};
  plan.unrecorded = Clip(header.unrecorded, plan.added);
  plan.seals = header.seal_num_tokens.has_value() && !content.sealed();
  RR_RETURN_IF_ERROR(CheckSealLength(header, plan.added.end));
  RR_RETURN_IF_ERROR(CheckLists(content, header, plan));
  return plan;
}

absl::StatusOr<IncarnationStep> CheckIncarnation(const SampleContent* content, const AppendHeader& header) {
  if (content == nullptr) {
    if (header.restart_nonce != 0 || header.revision == 0) return IncarnationStep::kOpen;
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("the append is for revision ", header.revision,
                                  " of a sample that does not exist; a new sample starts at revision 0"),
                     {.reason = Reason::kOldRevision});
  }
  if (header.restart_nonce == 0 || header.restart_nonce != content->restart_nonce) {
    const std::optional<uint32_t> attempt = AttemptOf(header.restart_nonce);
    const std::optional<uint32_t> present = AttemptOf(content->restart_nonce);
    if (attempt && present && *attempt != *present) {
      if (*attempt > *present) return IncarnationStep::kRestart;
      return MakeError(
          absl::StatusCode::kFailedPrecondition,
          absl::StrCat("the append belongs to attempt ", *attempt, ", and the sample is at attempt ", *present),
          {.reason = Reason::kOldRevision, .field = "append.restart_nonce"});
    }
    RR_RETURN_IF_ERROR(CheckRevision(*content, header.revision));
    if (header.restart_nonce != 0 && !(attempt && present)) return IncarnationStep::kRestart;
  }
  if (header.prefix && header.prefix != content->prefix) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     "append.prefix: the sample exists and was not opened with this prefix",
                     {.reason = Reason::kField, .field = "append.prefix"});
  }
  return IncarnationStep::kContinue;
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

absl::StatusOr<SampleContent> NewIncarnation(IncarnationStep step, const SampleContent* before,
                                             const AppendHeader& header, int32_t block_rows,
                                             std::optional<absl::StatusOr<SampleContent>>& prefix) {
  SampleContent incarnation{TokenChecks(block_rows)};
  if (header.prefix) {
    if (!prefix->ok()) return prefix->status();
    incarnation = *std::move(*prefix);
  }
  const bool restart = step == IncarnationStep::kRestart;
  incarnation.revision = restart ? before->revision + 1 : 0;
  incarnation.restart_nonce = header.restart_nonce;
  incarnation.prefix = header.prefix;
  incarnation.group = restart ? before->group : 0;
  incarnation.engine = header.engine;
  return incarnation;
}

bool KeepsContent(const AppendPlan& plan) { return plan.added.empty() && !plan.seals; }

SampleContent NextContent(const SampleContent& content, bool new_incarnation, const AppendHeader& header,
                          const AppendPlan& plan, ContentIds& ids) {
  SampleContent next = content.WithoutPieces();
  for (RowRange range : plan.unrecorded) AppendMerged(next.unrecorded, range);
  AppendWeights(next.weights, {plan.added, header.weight_version, header.weight_label});
  if (plan.seals && plan.added.empty()) next.tokens.TellEnd(TokensOf(header));
  next.tokens.Extend(TokensOf(header), plan.token_check);
  if (plan.seals) next.num_tokens = header.seal_num_tokens;
  if (header.group) next.group = *header.group;
  if (new_incarnation || !plan.added.empty()) next.content_id = ids.Next();
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
                   absl::StrCat("revision ", revision, " does not match the sample's revision ", content.revision),
                   {.reason = Reason::kOldRevision});
}

absl::Status CheckSeal(const SampleContent& content, int64_t num_tokens, int64_t revision) {
  RR_RETURN_IF_ERROR(CheckRevision(content, revision));
  const int64_t rows = content.rows();
  if (content.sealed() && *content.num_tokens != num_tokens) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("the sample is sealed with ", *content.num_tokens, " tokens"),
                     {.reason = Reason::kSealed});
  }
  if (num_tokens < 1 || num_tokens - 1 < rows) {
    return Invalid(Reason::kRowCount, "num_tokens", absl::StrCat(num_tokens, ", but ", rows, " rows are committed"));
  }
  if (num_tokens - 1 > rows) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("rows ", ToString(RowRange{rows, num_tokens - 1}), " are not committed"),
                     {.reason = Reason::kNotCommitted, .field = "num_tokens"});
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
    RR_RETURN_IF_ERROR(CheckRevision(content, *expected_revision));
  }
  if (rows < 0) return Invalid("rows", absl::StrCat("must be at least 0, got ", rows));
  if (rows > content.rows()) {
    return MakeError(absl::StatusCode::kOutOfRange,
                     absl::StrCat("rows: cannot truncate to ", rows, " rows: only ", content.rows(), " are committed"),
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
  constexpr int64_t kCopies = 3;  // In the snapshot, in the message to the reader, and in its bytes.
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
  state.weights = content.weights;
  if (const std::optional<uint32_t> check = content.tokens.At(content.rows())) {
    state.token_check = TokenCheck{content.rows(), *check};
  }
  state.engine = content.engine;
  return state;
}

}  // namespace routing_replay::server
