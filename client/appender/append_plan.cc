#include "client/appender/append_plan.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/buffer.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// Little-endian bytes of token ids, without a copy.
absl::Span<const uint8_t> TokenBytes(absl::Span<const uint32_t> ids) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const uint8_t*>(ids.data()), 4 * ids.size()};
}

absl::Status CheckRows(int64_t row_start, int64_t rows) {
  if (row_start < 0 || row_start > kMaxRows) {
    return Invalid(Reason::kField, "append.row_start", absl::StrCat(row_start, " is not in [0, ", kMaxRows, "]"));
  }
  if (rows >= 0 && rows <= kMaxRows - row_start) return absl::OkStatus();
  return Invalid(Reason::kField, "append.rows",
                 absl::StrCat(rows, " rows from ", row_start, " on: must end at row ", kMaxRows, " or before"));
}

// Sets the token ids of the appended rows, and the token check of the earlier rows if the caller gave their ids.
absl::Status SetTokens(absl::Span<const uint32_t> ids, AppendHeader& header) {
  const auto start = static_cast<size_t>(header.rows.begin);
  const auto rows = static_cast<size_t>(header.rows.size());
  if (ids.empty()) return absl::OkStatus();
  if (ids.size() != rows) {
    if (ids.size() < start + rows) {
      return Invalid(Reason::kLength, "append.token_ids",
                     absl::StrCat(ids.size(), " ids for rows ", ToString(header.rows),
                                  "; must be one per row, or one per position from 0 on"));
    }
    if (start > 0) header.token_check_start = TokenCheckExtend(0, TokenBytes(ids.first(start)));
    ids = ids.subspan(start, rows);
  }
  const absl::Span<const uint8_t> bytes = TokenBytes(ids);
  header.token_ids.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return absl::OkStatus();
}

std::optional<PrefixReference> Prefix(const AppendOptions& options) {
  if (options.prefix_sample.empty()) return std::nullopt;
  return PrefixReference{options.prefix_sample, options.prefix_rows, options.prefix_revision};
}

std::optional<int64_t> SealNumTokens(const AppendOptions& options, RowRange rows) {
  if (options.seal_num_tokens || !options.seal) return options.seal_num_tokens;
  // The sample ends with the append or with the prefix, whichever is longer: the append may lie within the prefix's
  // rows.
  return std::max(rows.end, std::min(options.prefix_sample.empty() ? 0 : options.prefix_rows, kMaxRows)) + 1;
}

// Checks that the ranges are rows of the append, and that CheckAppendHeader accepts their versions and labels.
absl::Status CheckWeights(absl::Span<const WeightSpan> weights, AppendHeader header) {
  RR_RETURN_IF_ERROR(CheckWeightRows(weights, header.rows));
  for (const WeightSpan& span : weights) {
    header.weight_version = span.version;
    header.weight_label = span.label;
    RR_RETURN_IF_ERROR(CheckAppendHeader(header));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RestartNonce(const AppendOptions& options) {
  if (!options.attempt) return options.restart_nonce;
  if (options.restart_nonce != 0) {
    return Invalid("append.attempt",
                   "must not be given together with restart: an attempt restarts the sample by itself");
  }
  if (*options.attempt < 0 || *options.attempt > std::numeric_limits<uint32_t>::max()) {
    return Invalid("append.attempt", absl::StrCat("must be in [0, 2^32 - 1], got ", *options.attempt));
  }
  return kAttemptNonce | static_cast<uint64_t>(*options.attempt);
}

absl::StatusOr<AppendHeader> MakeHeader(const AppendOptions& options, int64_t rows, std::vector<RowRange> unrecorded) {
  RR_RETURN_IF_ERROR(CheckRows(options.row_start, rows));
  RR_ASSIGN_OR_RETURN(const uint64_t nonce, RestartNonce(options));
  AppendHeader header{.sample = options.sample,
                      .producer = options.producer,
                      .rows = RowRange::OfSize(options.row_start, rows),
                      .unrecorded = std::move(unrecorded),
                      .revision = options.revision,
                      .restart_nonce = nonce,
                      .group = options.group,
                      .weight_version = options.weight_version,
                      .weight_label = options.weight_label,
                      .seal_num_tokens = SealNumTokens(options, RowRange::OfSize(options.row_start, rows)),
                      .prefix = Prefix(options),
                      .engine = options.engine};
  RR_RETURN_IF_ERROR(SetTokens(options.token_ids, header));
  RR_RETURN_IF_ERROR(CheckAppendHeader(header));
  RR_RETURN_IF_ERROR(CheckWeights(options.weights, header));
  return header;
}

// The token check of all tokens before the append's first row, if it is known.
std::optional<uint32_t> KnownStart(const AppendHeader& header) {
  if (header.rows.begin == 0) return 0;
  return header.token_check_start;
}

// Divides the append's tokens among its pieces.
void ShareTokens(const AppendHeader& whole, std::vector<AppendPiece>& pieces) {
  std::optional<uint32_t> check = KnownStart(whole);
  const bool has_tokens = !whole.token_ids.empty();
  for (AppendPiece& piece : pieces) {
    AppendHeader& header = piece.header;
    header.token_check_start.reset();
    if (check && header.rows.begin > 0 && (has_tokens || whole.token_check_start)) header.token_check_start = check;
    if (!has_tokens) continue;
    header.token_ids = whole.token_ids.substr(4 * (header.rows.begin - whole.rows.begin), 4 * header.rows.size());
    if (!check) continue;
    const auto* bytes = reinterpret_cast<const uint8_t*>(header.token_ids.data());
    check = TokenCheckExtend(*check, {bytes, header.token_ids.size()});
  }
}

// Gives each piece a key, by which the server recognizes a piece that is sent again. Asks the kernel, because a fork
// would duplicate a random engine, and creating a std::random_device takes 6 of the 30 us of an append.
void GiveResendKeys(std::vector<AppendPiece>& pieces) {
  uint64_t key = 0;
  if (getentropy(&key, sizeof(key)) != 0) std::abort();  // Fails only before Linux 3.17.
  for (AppendPiece& piece : pieces) piece.header.resend_key = std::max<uint64_t>(1, ++key);
}

// Returns the rows of each piece: as many whole windows as fit into `piece_bytes`, but at least one.
std::vector<RowRange> PieceRows(RowRange rows, absl::Span<const Block> blocks, int32_t block_rows,
                                int64_t piece_bytes) {
  std::vector<RowRange> pieces;
  RowRange piece{rows.begin, rows.begin};
  int64_t bytes = 0;
  size_t next = 0;
  for (const RowRange window : SplitAtWindows(rows, block_rows)) {
    int64_t window_bytes = 0;
    for (; next < blocks.size() && window.contains(blocks[next].rows); ++next)
      window_bytes += blocks[next].bytes.size();
    if (bytes > 0 && bytes + window_bytes > piece_bytes) {
      pieces.push_back(piece);
      piece = {window.begin, window.begin};
      bytes = 0;
    }
    piece.end = window.end;
    bytes += window_bytes;
  }
  pieces.push_back(piece);
  return pieces;
}

int64_t HeldBytes(const AppendPlan& plan) {
  int64_t bytes = 0;
  for (const AppendPiece& piece : plan.pieces) {
    bytes += static_cast<int64_t>(sizeof(AppendPiece) + piece.header.token_ids.size()) + piece.payload_bytes;
  }
  return bytes;
}

// All rows of the append in order, cut where their weight version changes. One empty range for an append without rows.
std::vector<WeightSpan> WeightRuns(const AppendHeader& whole, absl::Span<const WeightSpan> weights) {
  std::vector<WeightSpan> runs;
  WeightSpan rest{whole.rows, whole.weight_version, whole.weight_label};
  for (const WeightSpan& span : weights) {
    const RowRange before{rest.rows.begin, span.rows.begin};
    if (!before.empty()) runs.push_back({before, rest.version, rest.label});
    runs.push_back(span);
    rest.rows.begin = span.rows.end;
  }
  if (!rest.rows.empty() || runs.empty()) runs.push_back(rest);
  return runs;
}

// Makes the pieces of an append; Finish then distributes tokens, seal and prefix.
class PieceMaker {
 public:
  explicit PieceMaker(AppendHeader whole) : whole_(std::move(whole)), common_(whole_) {
    common_.unrecorded.clear();
    common_.token_ids.clear();
    common_.seal_num_tokens.reset();
  }

  AppendPiece& Add(const WeightSpan& run, RowRange rows) {
    AppendPiece& piece = plan_.pieces.emplace_back();
    piece.header = common_;
    piece.header.rows = rows;
    piece.header.unrecorded = Clip(whole_.unrecorded, rows);
    piece.header.weight_version = run.version;
    piece.header.weight_label = run.label;
    if (plan_.pieces.size() > 1) piece.header.prefix.reset();
    return piece;
  }

  AppendPlan Finish() {
    plan_.pieces.back().header.seal_num_tokens = whole_.seal_num_tokens;
    ShareTokens(whole_, plan_.pieces);
    GiveResendKeys(plan_.pieces);
    plan_.bytes = HeldBytes(plan_);
    return std::move(plan_);
  }

 private:
  const AppendHeader whole_;
  AppendHeader common_;  // The part of the header that all pieces share.
  AppendPlan plan_;
};

}  // namespace

absl::StatusOr<std::vector<int64_t>> WeightCuts(absl::Span<const WeightSpan> weights) {
  std::vector<int64_t> cuts;
  int64_t end = 0;
  for (const WeightSpan& span : weights) {
    if (span.rows.begin < end || span.rows.empty()) {
      return Invalid(Reason::kField, "append.weights",
                     absl::StrCat(ToString(span.rows), " must not be empty, and must follow the previous range"));
    }
    end = span.rows.end;
    if (cuts.empty() || cuts.back() < span.rows.begin) cuts.push_back(span.rows.begin);
    cuts.push_back(end);
  }
  return cuts;
}

std::vector<WeightSpan> ClipWeights(absl::Span<const WeightSpan> weights, RowRange rows) {
  std::vector<WeightSpan> clipped;
  for (const WeightSpan& span : weights) {
    const RowRange common = Intersect(span.rows, rows);
    if (!common.empty()) clipped.push_back({common, span.version, span.label});
  }
  return clipped;
}

absl::Status CheckWeightRows(absl::Span<const WeightSpan> weights, RowRange rows) {
  if (const auto cuts = WeightCuts(weights); !cuts.ok()) return cuts.status();
  for (const WeightSpan& span : weights) {
    if (rows.contains(span.rows)) continue;
    return Invalid(Reason::kField, "append.weights",
                   absl::StrCat(ToString(span.rows), " of version ", span.version, " must be inside ", ToString(rows),
                                ", the rows that are given"));
  }
  return absl::OkStatus();
}

absl::StatusOr<AppendPlan> PlanRows(const AppendOptions& options, const TensorDescription& tensor,
                                    absl::Span<const uint8_t> payload, const Geometry& geometry,
                                    const BlockOptions& blocks) {
  RR_ASSIGN_OR_RETURN(auto cuts, WeightCuts(options.weights));
  RR_ASSIGN_OR_RETURN(auto rows, DecodeTensor(geometry, tensor, payload,
                                              {.row_start = options.row_start,
                                               .take = options.take,
                                               .unrecorded = options.unrecorded,
                                               .block_rows = blocks.block_rows,
                                               .cuts = std::move(cuts),
                                               .codec = blocks.codec,
                                               .max_payload_bytes = blocks.max_payload_bytes}));
  return PlanBlocks(options, std::move(rows), blocks.block_rows, blocks.piece_bytes());
}

absl::StatusOr<AppendPlan> PlanBlocks(const AppendOptions& options, DecodedRows rows, int32_t block_rows,
                                      int64_t piece_bytes) {
  RR_ASSIGN_OR_RETURN(AppendHeader whole, MakeHeader(options, rows.rows.size(), std::move(rows.unrecorded)));
  const auto blocks = std::make_shared<const std::vector<Block>>(std::move(rows.blocks));
  PieceMaker maker(whole);
  size_t next = 0;
  for (const WeightSpan& run : WeightRuns(whole, options.weights)) {
    for (const RowRange piece_rows :
         PieceRows(run.rows, absl::MakeConstSpan(*blocks).subspan(next), block_rows, piece_bytes)) {
      AppendPiece& piece = maker.Add(run, piece_rows);
      piece.owner = blocks;
      std::vector<BlockHeader> headers;
      for (; next < blocks->size() && piece_rows.contains((*blocks)[next].rows); ++next) {
        const Block& block = (*blocks)[next];
        headers.push_back({block.rows, block.codec, block.plane_crc32c});
        piece.payload.push_back(block.bytes.span());
        piece.payload_bytes += static_cast<int64_t>(block.bytes.size());
      }
      if (!headers.empty()) piece.header.payload_kind = std::move(headers);
    }
  }
  return maker.Finish();
}

absl::StatusOr<AppendPlan> PlanUnrecorded(const AppendOptions& options, int64_t rows) {
  RR_RETURN_IF_ERROR(CheckRows(options.row_start, rows));
  std::vector<RowRange> all;
  AppendMerged(all, RowRange::OfSize(options.row_start, rows));
  if (!options.unrecorded.empty() && options.unrecorded != all) {
    return Invalid(Reason::kField, "append.unrecorded", "must cover all rows of an append without recorded rows");
  }
  RR_ASSIGN_OR_RETURN(const auto header, MakeHeader(options, rows, std::move(all)));
  PieceMaker maker(header);
  maker.Add({header.rows, header.weight_version, header.weight_label}, header.rows);
  return maker.Finish();
}

AppendPlan DropPayload(const AppendPlan& plan) {
  AppendHeader whole = plan.pieces.front().header;
  std::vector<WeightSpan> runs;
  whole.token_ids.clear();
  for (const AppendPiece& piece : plan.pieces) {
    const AppendHeader& header = piece.header;
    whole.token_ids += header.token_ids;
    if (runs.empty() || runs.back().version != header.weight_version || runs.back().label != header.weight_label) {
      runs.push_back({header.rows, header.weight_version, header.weight_label});
    }
    runs.back().rows.end = header.rows.end;
  }
  whole.rows.end = runs.back().rows.end;
  whole.seal_num_tokens = plan.pieces.back().header.seal_num_tokens;
  whole.unrecorded.clear();
  AppendMerged(whole.unrecorded, whole.rows);
  whole.payload_kind = std::monostate();
  PieceMaker maker(std::move(whole));
  for (const WeightSpan& run : runs) maker.Add(run, run.rows);
  AppendPlan mark = maker.Finish();
  mark.note = plan.note;
  return mark;
}

void AddAck(const AppendAck& ack, AppendOutcome& outcome) {
  outcome.committed_rows = ack.committed_rows;
  outcome.revision = ack.revision;
  outcome.content_id = ack.content_id;
  outcome.sealed = outcome.sealed || ack.sealed;
  outcome.trimmed_rows += ack.trimmed_rows;
  outcome.conflicting_rows += ack.conflicting_rows;
  outcome.late_rows += ack.late_rows;
  outcome.unrecorded_rows += ack.unrecorded_rows;
  outcome.unverified_rows += ack.unverified_rows;
}

absl::StatusOr<std::optional<PlanAppender::Queued>> PlanAppender::Add(const AppendOptions& options,
                                                                      const TensorDescription* tensor,
                                                                      absl::Span<const uint8_t> payload,
                                                                      bool may_wait) {
  auto plan = tensor == nullptr ? PlanUnrecorded(options, TotalRows(options.unrecorded))
                                : PlanRows(options, *tensor, payload, *geometry_, blocks_);
  if (plan.ok()) return Enqueue(*plan, may_wait);
  return WithSample(plan.status(), options.sample);
}

absl::Status PlanAppender::Append(const AppendOptions& options, const TensorDescription& tensor,
                                  absl::Span<const uint8_t> payload) {
  return Add(options, &tensor, payload, /*may_wait=*/true).status();
}

absl::Status PlanAppender::AppendMany(absl::Span<const NewAppend> appends, QueuedAppends& queued, bool may_wait) {
  for (const NewAppend& append : appends) {
    RR_ASSIGN_OR_RETURN(const auto one,
                        Add(append.options, append.tensor ? &*append.tensor : nullptr, append.payload, may_wait));
    if (!one) break;
    queued.sequences.push_back(one->sequence);
    queued.dropped += one->dropped ? 1 : 0;
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::client
