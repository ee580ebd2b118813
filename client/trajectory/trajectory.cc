#include "client/trajectory/trajectory.h"

#include <xxhash.h>
#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/block.h"
#include "proto/wire/buffer.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

using Kind = RowMark::Kind;

int64_t CommonPrefix(absl::Span<const uint32_t> a, absl::Span<const uint32_t> b) {
  const size_t shorter = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + shorter, b.begin()).first - a.begin();
}

bool Fits(const TokenCheck& check, absl::Span<const uint32_t> tokens) {
  static_assert(std::endian::native == std::endian::little);
  if (check.rows > static_cast<int64_t>(tokens.size())) return false;
  const auto* bytes = reinterpret_cast<const uint8_t*>(tokens.data());
  return TokenCheckExtend(0, {bytes, 4 * static_cast<size_t>(check.rows)}) == check.crc32c;
}

}  // namespace

Trajectory::Trajectory(Options options)
    : options_(std::move(options)), in_doubt_(options_.existing != Existing::kNone) {}

Trajectory Trajectory::Fork(std::string sample) const {
  Trajectory fork({.sample = std::move(sample), .strict = options_.strict});
  if (parent_) {
    fork.parent_ = parent_;
    return fork;
  }
  const auto rows = std::min(acknowledged_, num_tokens());
  fork.parent_ = Parent{
      options_.sample, revision_, {tokens_.begin(), tokens_.begin() + rows}, {marks_.begin(), marks_.begin() + rows}};
  return fork;
}

absl::Status Trajectory::Error(absl::StatusCode code, ErrorDetail detail, absl::string_view what) const {
  detail.sample = options_.sample;
  detail.committed_rows = rows();
  const std::string field = detail.field.empty() ? "" : absl::StrCat(detail.field, ": ");
  return MakeError(code, absl::StrCat("sample ", options_.sample, ": ", field, what), detail);
}

absl::StatusOr<TurnDecision> Trajectory::Decide(const Turn& turn) const {
  TurnDecision decision;
  if (in_doubt_) {
    decision.step = TurnDecision::Step::kAsk;
    return decision;
  }
  RR_ASSIGN_OR_RETURN(const NewHistory history, Read(turn));
  if (sealed() && !replace_ && !turn.cut && (history.changed || history.num_tokens != sealed_num_tokens_)) {
    return Error(absl::StatusCode::kFailedPrecondition, {.reason = Reason::kSealed},
                 absl::StrCat("it is sealed with ", *sealed_num_tokens_, " tokens"));
  }
  decision.num_tokens = history.num_tokens;
  if (history.changed) decision.retokenised_at = history.same;
  // Check the turn before any row is removed, so that a wrong turn does not lose rows.
  absl::Status status = replace_ ? absl::OkStatus() : DecideRows(turn, history.keep, decision);
  if (status.ok() && !replace_) status = DecideSeal(turn, decision);
  if (!status.ok()) return status;
  if (replace_ || history.keep < rows()) {
    decision.step = TurnDecision::Step::kTruncate;
    decision.truncate_rows = history.keep;
    decision.expected_revision = revision_;
  }
  return decision;
}

absl::StatusOr<Trajectory::NewHistory> Trajectory::Read(const Turn& turn) const {
  if (replace_) return NewHistory{.num_tokens = num_tokens()};
  if (resumed_check_ || rows() > num_tokens()) return ReadResumed(turn);
  if (!turn.tokens) return NewHistory{num_tokens(), num_tokens(), rows()};
  if (turn.tokens_start < 0 || turn.tokens_start > num_tokens()) {
    return Error(absl::StatusCode::kInvalidArgument, {.reason = Reason::kField, .field = "turn.tokens_start"},
                 absl::StrCat("tokens from ", turn.tokens_start, " on do not follow a history of ", num_tokens()));
  }
  const absl::Span<const uint32_t> before = absl::MakeConstSpan(tokens_).subspan(turn.tokens_start);
  NewHistory history;
  history.num_tokens = turn.tokens_start + static_cast<int64_t>(turn.tokens->size());
  history.same = turn.tokens_start + CommonPrefix(before, *turn.tokens);
  history.changed = history.same < num_tokens();
  // The last token has no row.
  history.keep = std::min({rows(), history.same, std::max<int64_t>(0, history.num_tokens - 1)});
  return history;
}

absl::StatusOr<Trajectory::NewHistory> Trajectory::ReadResumed(const Turn& turn) const {
  if (!turn.tokens || turn.tokens_start != 0) {
    return Error(absl::StatusCode::kInvalidArgument, {.reason = Reason::kField, .field = "turn.tokens"},
                 "the first turn of a resumed sample needs the whole history");
  }
  NewHistory history;
  history.num_tokens = static_cast<int64_t>(turn.tokens->size());
  if (!resumed_check_ || !Fits(*resumed_check_, *turn.tokens)) {
    return Error(absl::StatusCode::kAlreadyExists, {.reason = Reason::kOtherTokens},
                 absl::StrCat("it has ", rows(), " rows of other tokens, or of tokens that cannot be compared"));
  }
  history.same = rows();
  history.keep = std::min(rows(), std::max<int64_t>(0, history.num_tokens - 1));
  return history;
}

int64_t Trajectory::Shareable(const Turn& turn) const {
  const absl::Span<const uint32_t> parent = parent_->tokens;
  const absl::Span<const uint32_t> told = absl::MakeConstSpan(tokens_);
  if (!turn.tokens) return CommonPrefix(parent, told);
  const int64_t before = CommonPrefix(parent, told.first(turn.tokens_start));
  return before < turn.tokens_start ? before : before + CommonPrefix(parent.subspan(before), *turn.tokens);
}

absl::Status Trajectory::DecideRows(const Turn& turn, int64_t held, TurnDecision& decision) const {
  const int64_t last_row = std::max<int64_t>(0, decision.num_tokens - 1);
  if (parent_ && (turn.rows || turn.seal)) {
    // Rows that the engine may still deliver are not shared from the parent.
    held = std::min({Shareable(turn), last_row, turn.rows ? turn.rows->end : last_row});
    if (held > 0) decision.prefix = PrefixReference{parent_->sample, held, parent_->revision};
  }
  decision.gap = decision.fresh = {held, held};
  if (!turn.rows) return absl::OkStatus();
  RowRange given = *turn.rows;
  // At a stop token some engines also return a row for the last token, which was never fed to the model. It is left
  // out, unless rows start at 1: these may also be rows 0 … T − 2 of an engine that ignored the requested start, and a
  // wrong guess would silently shift all rows.
  decision.surplus_rows = !given.empty() && given.end == decision.num_tokens && given.begin != 1 ? 1 : 0;
  given.end -= decision.surplus_rows;
  const bool complete = given.end == last_row;
  if (given.begin < 0 || given.begin > given.end || given.end > last_row ||
      (turn.outcome == TurnOutcome::kFinished && !complete)) {
    return Error(absl::StatusCode::kInvalidArgument, {.reason = Reason::kRowCount, .field = "turn.rows"},
                 absl::StrCat("rows ", ToString(*turn.rows), " do not fit: the turn ends with ", decision.num_tokens,
                              " tokens, so its rows end at ", last_row));
  }
  if (given.begin > held && !turn.missing_is_unrecorded) {
    return Error(absl::StatusCode::kFailedPrecondition, {.reason = Reason::kGap, .row = held},
                 absl::StrCat("rows from ", given.begin, " on leave a gap: the sample has ", held, " rows"));
  }
  decision.gap.end = std::max(held, given.begin);
  decision.compare = Intersect(given, {0, held});
  decision.fresh = {decision.gap.end, std::max(decision.gap.end, given.end)};
  return absl::OkStatus();
}

absl::Status Trajectory::DecideSeal(const Turn& turn, TurnDecision& decision) const {
  const int64_t reached = decision.fresh.end;
  decision.tail = {reached, reached};
  if (!turn.seal || sealed_num_tokens_ == decision.num_tokens) return absl::OkStatus();
  const int64_t last_row = decision.num_tokens - 1;
  if (last_row < 0) {
    return Error(absl::StatusCode::kInvalidArgument, {.reason = Reason::kField, .field = "turn.tokens"},
                 "a sample must have at least one token");
  }
  if (reached < last_row && !turn.missing_is_unrecorded) {
    return Error(absl::StatusCode::kFailedPrecondition, {.reason = Reason::kNotCommitted, .row = reached},
                 absl::StrCat("cannot seal: rows ", ToString({reached, last_row}), " of a sample of ",
                              decision.num_tokens, " tokens are missing"));
  }
  decision.tail.end = last_row;
  decision.seal_num_tokens = decision.num_tokens;
  return absl::OkStatus();
}

absl::Status Trajectory::Refine(const Turn& turn, absl::Span<const RowMark> marks, TurnDecision& decision) const {
  if (decision.prefix) return RefinePrefix(turn, marks, decision);
  std::optional<int64_t> first_conflict;
  for (int64_t row = decision.compare.begin; row < decision.compare.end; ++row) {
    const RowMark& given = marks[row - decision.compare.begin];
    if (given.kind != Kind::kRecorded || SameRoute(given, marks_[row])) continue;
    decision.uncompared_rows += marks_[row].kind == Kind::kUnknown;
    decision.late_rows += marks_[row].kind == Kind::kUnrecorded;
    if (marks_[row].kind != Kind::kRecorded) continue;
    ++decision.conflicting_rows;
    if (!first_conflict) first_conflict = row;
  }
  if (!options_.strict || !first_conflict) return absl::OkStatus();
  return Error(absl::StatusCode::kAlreadyExists, {.reason = Reason::kConflictingRows, .row = first_conflict},
               absl::StrCat("row ", *first_conflict, " was given before with another route; ",
                            decision.conflicting_rows, " rows differ"));
}

absl::Status Trajectory::RefinePrefix(const Turn& turn, absl::Span<const RowMark> marks, TurnDecision& decision) const {
  int64_t row = decision.compare.begin;
  const auto fits = [&](const RowMark& given) {
    return given.kind != Kind::kRecorded || SameRoute(given, parent_->marks[row]);
  };
  while (row < decision.compare.end && fits(marks[row - decision.compare.begin])) ++row;
  if (row == decision.compare.end) return absl::OkStatus();
  // From here on the sample differs from its parent.
  decision.prefix->rows = row;
  if (row == 0) decision.prefix.reset();
  decision.compare.end = row;
  decision.gap = {row, row};
  decision.fresh = {row, turn.rows->end - decision.surplus_rows};
  return DecideSeal(turn, decision);
}

void Trajectory::Commit(const Turn& turn, const TurnDecision& decision, absl::Span<const RowMark> marks) {
  if (decision.prefix) marks_.assign(parent_->marks.begin(), parent_->marks.begin() + decision.prefix->rows);
  if (turn.rows || turn.seal) parent_.reset();
  if (turn.tokens) {
    tokens_.resize(turn.tokens_start);
    tokens_.insert(tokens_.end(), turn.tokens->begin(), turn.tokens->end());
    resumed_check_.reset();
  }
  marks_.resize(marks_.size() + decision.gap.size());
  marks_.insert(marks_.end(), marks.begin(), marks.end());
  marks_.resize(marks_.size() + decision.tail.size());
  if (decision.seal_num_tokens) sealed_num_tokens_ = decision.seal_num_tokens;
}

void Trajectory::OnOutcome(const AppendOutcome& outcome) {
  if (!outcome.status.ok()) {
    in_doubt_ = true;
    return;
  }
  if (outcome.revision != revision_) return;
  acknowledged_ = std::max(acknowledged_, std::min(outcome.committed_rows, rows()));
}

void Trajectory::OnDropped(RowRange rows) {
  const RowRange known = Intersect(rows, {0, this->rows()});
  for (int64_t row = known.begin; row < known.end; ++row) marks_[row] = {};
}

absl::Status Trajectory::OnState(const std::optional<SampleState>& found) {
  const SampleState state = found.value_or(SampleState{});
  const bool replace = replace_ || options_.existing == Existing::kReplace;
  if (!replace && found && num_tokens() > 0) {
    const bool proven = state.token_check ? Fits(*state.token_check, tokens_) : state.committed_rows <= rows();
    if (!proven) {
      return Error(absl::StatusCode::kAlreadyExists, {.reason = Reason::kOtherTokens},
                   absl::StrCat("it has ", state.committed_rows, " rows of other tokens"));
    }
  }
  options_.existing = Existing::kNone;
  resumed_check_.reset();
  if (!replace && num_tokens() == 0 && state.committed_rows > 0) resumed_check_ = state.token_check;
  marks_.resize(state.committed_rows, RowMark{.kind = Kind::kUnknown});
  for (const RowRange range : state.unrecorded) {
    std::fill(marks_.begin() + range.begin, marks_.begin() + range.end, RowMark{});
  }
  acknowledged_ = state.committed_rows;
  revision_ = state.revision;
  sealed_num_tokens_ = state.num_tokens;
  replace_ = replace && (state.committed_rows > 0 || state.sealed());
  in_doubt_ = false;
  return absl::OkStatus();
}

void Trajectory::OnTruncated(const SampleState& state) {
  marks_.resize(state.committed_rows, RowMark{.kind = Kind::kUnknown});
  acknowledged_ = state.committed_rows;
  revision_ = state.revision;
  sealed_num_tokens_.reset();
  replace_ = false;
}

int64_t Trajectory::NextRow(absl::Span<const uint32_t> tokens) const {
  if (parent_) return Shareable({.tokens = tokens});
  return std::min(rows(), CommonPrefix(tokens_, tokens));
}

namespace {

// Extends the digest of each row of the block by the row's ids, layer by layer. `marks`: those of the block's rows.
void DigestBlock(const Geometry& geometry, const Block& block, RowMark* marks) {
  const int64_t rows = block.rows.size();
  Buffer decoded;
  for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
    const LayerRouting& layer = geometry.layer(ordinal);
    const auto row_bytes = static_cast<size_t>(layer.top_k) * layer.id_bytes();
    absl::Span<const uint8_t> ids = block.view().plane(geometry, ordinal);
    if (block.codec != Codec::kRaw) {
      decoded = Buffer(rows * row_bytes);
      DecodeCut(geometry, ordinal, block.codec, 0, rows, ids, decoded.span());
      ids = decoded.span();
    }
    for (int64_t row = 0; row < rows; ++row) {
      marks[row].digest = XXH3_64bits_withSeed(ids.data() + row * row_bytes, row_bytes, marks[row].digest);
    }
  }
}

}  // namespace

std::vector<RowMark> MarkRows(const Geometry& geometry, const DecodedRows& rows) {
  std::vector<RowMark> marks(rows.rows.size());
  for (const Block& block : rows.blocks) {
    RowMark* const first = marks.data() + (block.rows.begin - rows.rows.begin);
    for (int64_t row = 0; row < block.rows.size(); ++row) first[row].kind = RowMark::Kind::kRecorded;
    DigestBlock(geometry, block, first);
  }
  return marks;
}

}  // namespace routing_replay::client
