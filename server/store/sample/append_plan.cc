#include "server/store/sample/append_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/sample/row_comparison.h"
#include "server/store/sample/sample_content.h"

namespace routing_replay::server {
namespace {

absl::Status OtherTokens(int64_t window, int64_t row, absl::string_view what) {
  ErrorDetail detail{.reason = Reason::kOtherTokens, .field = "append.token_ids"};
  detail.row = row;
  detail.first_differing_block = window;
  return MakeError(absl::StatusCode::kAlreadyExists,
                   absl::StrCat("the sample holds another trajectory: ", what, " in block ", window,
                                "; use another sample id, or restart"),
                   detail);
}

// Tokens first: routes of another trajectory are no conflict but another sample.
absl::StatusOr<TokenComparison> CompareTokens(const RunInfo& run, const SampleContent& content,
                                              const AppendHeader& header, absl::Span<const Block> blocks) {
  TokenComparison tokens = content.tokens.Compare(TokensOf(header));
  if (tokens.differs_at) {
    const int64_t rows = *tokens.differs_at;
    return OtherTokens(content.tokens.WindowOf(rows), rows, absl::StrCat("the tokens before row ", rows, " differ"));
  }
  for (RowRange suspect : tokens.suspect) {
    absl::StatusOr<RowDifferences> routes = CompareRows(*run.geometry, content.pieces, blocks, suspect);
    if (!routes.ok()) return routes.status();
    if (routes->rows == 0) continue;
    return OtherTokens(routes->first_row / run.options.block_rows, routes->first_row,
                       absl::StrCat("tokens cannot be verified and routes differ from row ", routes->first_row));
  }
  return tokens;
}

absl::Status CompareOverlap(const RunInfo& run, const SampleContent& content, const AppendHeader& header,
                            absl::Span<const Block> blocks, RowRange overlap, AppendPlan& plan) {
  absl::StatusOr<TokenComparison> tokens = CompareTokens(run, content, header, blocks);
  if (!tokens.ok()) return tokens.status();
  absl::StatusOr<RowDifferences> routes = CompareRows(*run.geometry, content.pieces, blocks, overlap);
  if (!routes.ok()) return routes.status();
  if (routes->rows > 0 && run.options.strict) {
    ErrorDetail detail{.reason = Reason::kConflictingRows};
    detail.row = routes->first_row;
    return MakeError(absl::StatusCode::kAlreadyExists,
                     absl::StrCat(routes->rows, " committed rows hold other routes, the first is row ",
                                  routes->first_row, "; the run is strict"),
                     detail);
  }
  plan.token_check = tokens->check_at_end;
  plan.trimmed_rows = overlap.size();
  plan.conflicting_rows = routes->rows;
  plan.unverified_rows = TotalRows(tokens->unverified);
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
  detail.missing_rows = {{content.rows(), header.rows.begin}};
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("rows ", ToString(detail.missing_rows[0]), " are missing: the append starts at row ",
                                header.rows.begin, ", ", content.rows(), " rows are committed"),
                   detail);
}

absl::Status CheckSeal(const AppendHeader& header, int64_t rows_after) {
  if (!header.seal_num_tokens || *header.seal_num_tokens - 1 == rows_after) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("append.seal_num_tokens: ", *header.seal_num_tokens, " tokens have ",
                                *header.seal_num_tokens - 1, " rows, but ", rows_after, " would be committed"),
                   {.reason = Reason::kRowCount, .field = "append.seal_num_tokens"});
}

// Every answer about the sample, every record of a read and every head on a disk has these lists whole.
absl::Status CheckLists(const SampleContent& content, const AppendHeader& header, const AppendPlan& plan) {
  const auto too_many = [](const char* field, size_t most, absl::string_view what) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat(field, ": a sample has at most ", most, " ", what, ", and this append would pass them"),
        {.reason = Reason::kLength, .field = field});
  };
  const bool joined = !plan.unrecorded.empty() && !content.unrecorded.empty() &&
                      content.unrecorded.back().end == plan.unrecorded.front().begin;
  if (content.unrecorded.size() + plan.unrecorded.size() - joined > kMaxUnrecordedRanges) {
    return too_many("append.unrecorded", kMaxUnrecordedRanges, "ranges of unrecorded rows");
  }
  const bool other =
      !plan.added.empty() && !content.provenance.empty() &&
      !SameOrigin(content.provenance.back(), {plan.added, header.weight_version, header.weight_label, header.engine});
  if (other && content.provenance.size() >= kMaxProvenance) {
    return too_many("append.weight_version", kMaxProvenance, "changes of engine or weight version");
  }
  return absl::OkStatus();
}

}  // namespace

AppendTokens TokensOf(const AppendHeader& header) {
  return {header.rows,
          {reinterpret_cast<const uint8_t*>(header.token_ids.data()), header.token_ids.size()},
          header.token_check_start};
}

absl::StatusOr<AppendPlan> PlanAppend(const RunInfo& run, const SampleContent& content, const AppendHeader& header,
                                      absl::Span<const Block> blocks) {
  AppendPlan plan;
  const RowRange overlap = Intersect(header.rows, {0, content.rows()});
  if (absl::Status status = CompareOverlap(run, content, header, blocks, overlap, plan); !status.ok()) return status;
  for (auto check : {CheckSealed, CheckGap}) {
    if (absl::Status status = check(content, header); !status.ok()) return status;
  }
  plan.added = {content.rows(), std::max(content.rows(), header.rows.end)};
  plan.unrecorded = Clip(header.unrecorded, plan.added);
  plan.seals = header.seal_num_tokens.has_value() && !content.sealed();
  if (absl::Status status = CheckSeal(header, plan.added.end); !status.ok()) return status;
  if (absl::Status status = CheckLists(content, header, plan); !status.ok()) return status;
  return plan;
}

}  // namespace routing_replay::server
