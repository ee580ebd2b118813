#include "client/appender/append_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/buffer.h"
#include "proto/wire/payload/base64.h"
#include "proto/wire/payload/npy.h"
#include "proto/wire/payload/tensor_view.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

// Base64 text of more bytes than a .npy header may have; whole groups of four.
constexpr size_t kBase64HeadBytes = 2048;
// Room for everything of a message but its payload.
constexpr int64_t kMaxHeaderBytes = int64_t{1} << 20;

absl::Status Invalid(Reason reason, absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", what),
                   {.reason = reason, .field = std::string(field)});
}

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
                 absl::StrCat(rows, " rows from ", row_start, " on; rows up to ", kMaxRows, " can be"));
}

// The token ids of the appended rows, and the check of those before where the caller gave them.
absl::Status SetTokens(absl::Span<const uint32_t> ids, AppendHeader& header) {
  const auto start = static_cast<size_t>(header.rows.begin);
  const auto rows = static_cast<size_t>(header.rows.size());
  if (ids.empty()) return absl::OkStatus();
  if (ids.size() != rows) {
    if (ids.size() < start + rows) {
      return Invalid(Reason::kLength, "append.token_ids",
                     absl::StrCat(ids.size(), " ids for rows ", ToString(header.rows),
                                  "; one per row, or one per position from 0 on"));
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
  // Rows of a prefix are there before those of the append, which may lie within it.
  return std::max(rows.end, std::min(options.prefix_sample.empty() ? 0 : options.prefix_rows, kMaxRows)) + 1;
}

// The rules for a header have one owner, the parser: the header of the whole append goes through it once.
absl::Status CheckByParsing(const AppendHeader& header) {
  AppendRequest request;
  request.append = header;
  const std::string bytes = EncodeAppendRequest(request, 0);
  const absl::Span<const uint8_t> span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  return ParseAppendRequest(ByteChain(span)).status();
}

absl::StatusOr<AppendHeader> MakeHeader(const AppendOptions& options, int64_t rows, std::vector<RowRange> unrecorded) {
  if (absl::Status status = CheckRows(options.row_start, rows); !status.ok()) return status;
  AppendHeader header{.sample = options.sample,
                      .producer = options.producer,
                      .rows = RowRange::OfSize(options.row_start, rows),
                      .unrecorded = std::move(unrecorded),
                      .revision = options.revision,
                      .restart_nonce = options.restart_nonce,
                      .group = options.group,
                      .weight_version = options.weight_version,
                      .weight_label = options.weight_label,
                      .seal_num_tokens = SealNumTokens(options, RowRange::OfSize(options.row_start, rows)),
                      .prefix = Prefix(options),
                      .engine = options.engine};
  if (absl::Status status = SetTokens(options.token_ids, header); !status.ok()) return status;
  if (absl::Status status = CheckByParsing(header); !status.ok()) return status;
  return header;
}

// The check of positions 0 … start − 1 of an append, where it is known.
std::optional<uint32_t> KnownStart(const AppendHeader& header) {
  if (header.rows.begin == 0) return 0;
  return header.token_check_start;
}

// Gives every piece its part of the whole append's tokens.
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
    piece.token_check_end = check;
  }
}

// Rows of the pieces: whole windows while they fit.
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

// Rows of a tensor that is sent as it is: as stated, or as its .npy header states.
absl::StatusOr<int64_t> TensorRows(const TensorDescription& tensor, absl::Span<const uint8_t> payload) {
  std::vector<int64_t> shape = tensor.shape;
  if (shape.empty() && tensor.compression == Compression::kNone && tensor.encoding != Encoding::kRaw &&
      tensor.encoding != Encoding::kBase64) {
    Buffer decoded;
    absl::Span<const uint8_t> file = payload;
    if (tensor.encoding == Encoding::kBase64Npy) {
      auto head = DecodeBase64(payload.first(std::min<size_t>(payload.size(), kBase64HeadBytes)));
      if (!head.ok()) return head.status();
      decoded = *std::move(head);
      file = decoded.span();
    }
    auto header = ParseNpyHeader(file);
    if (!header.ok()) return header.status();
    shape = std::move(header->shape);
  }
  if (shape.empty()) {
    return Invalid(Reason::kShape, "append.tensor.shape",
                   "must be stated for a payload that is sent as it is and whose .npy header cannot be looked at");
  }
  if (shape[0] >= 0 && shape[0] <= kMaxRows) return shape[0];
  return Invalid(Reason::kShape, "append.tensor.shape", absl::StrCat(shape[0], " rows"));
}

AppendPlan OnePiece(AppendHeader header) {
  AppendPlan plan;
  plan.pieces.resize(1);
  plan.pieces[0].header = header;
  ShareTokens(header, plan.pieces);
  return plan;
}

// Some of the tensor's rows, as they are: cut here.
absl::StatusOr<AppendPlan> PlanTaken(AppendOptions options, const TensorDescription& tensor,
                                     absl::Span<const uint8_t> payload, const ServerLimits& limits) {
  auto view = OpenTensor(tensor, payload, limits.max_payload_bytes);
  if (!view.ok()) return view.status();
  if (absl::Status status = TakeSlots(*options.take, *view); !status.ok()) return status;
  options.take.reset();
  const TensorDescription taken{.dtype = view->dtype,
                                .shape = {view->rows, view->layers, view->top_k},
                                .layer_basis = tensor.layer_basis,
                                .layer_ids = tensor.layer_ids};
  return PlanTensor(options, taken, view->elements, limits);
}

}  // namespace

absl::StatusOr<AppendPlan> PlanRows(const AppendOptions& options, const TensorDescription& tensor,
                                    absl::Span<const uint8_t> payload, const Geometry& geometry,
                                    const BlockOptions& blocks) {
  auto rows = DecodeTensor(geometry, tensor, payload,
                           {.row_start = options.row_start,
                            .take = options.take,
                            .unrecorded = options.unrecorded,
                            .block_rows = blocks.block_rows,
                            .codec = blocks.codec,
                            .max_payload_bytes = blocks.max_payload_bytes});
  if (!rows.ok()) return rows.status();
  return PlanBlocks(options, *std::move(rows), blocks);
}

absl::StatusOr<AppendPlan> PlanBlocks(const AppendOptions& options, DecodedRows rows, const BlockOptions& blocks) {
  // Half of a message is left for the headers and the token ids.
  return PlanBlocks(options, std::move(rows), blocks.block_rows, std::min(kPieceBytes, blocks.max_message_bytes / 2));
}

absl::StatusOr<AppendPlan> PlanBlocks(const AppendOptions& options, DecodedRows rows, int32_t block_rows,
                                      int64_t piece_bytes) {
  absl::StatusOr<AppendHeader> whole = MakeHeader(options, rows.rows.size(), std::move(rows.unrecorded));
  if (!whole.ok()) return whole.status();
  const auto blocks = std::make_shared<const std::vector<Block>>(std::move(rows.blocks));
  AppendHeader common = *whole;  // What every piece says.
  common.unrecorded.clear();
  common.token_ids.clear();
  common.seal_num_tokens.reset();
  AppendPlan plan;
  size_t next = 0;
  for (const RowRange piece_rows : PieceRows(whole->rows, *blocks, block_rows, piece_bytes)) {
    AppendPiece& piece = plan.pieces.emplace_back();
    piece.header = common;
    piece.header.rows = piece_rows;
    piece.header.unrecorded = Clip(whole->unrecorded, piece_rows);
    if (plan.pieces.size() > 1) piece.header.prefix.reset();
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
  plan.pieces.back().header.seal_num_tokens = whole->seal_num_tokens;
  ShareTokens(*whole, plan.pieces);
  plan.bytes = HeldBytes(plan);
  return plan;
}

absl::StatusOr<AppendPlan> PlanTensor(const AppendOptions& options, const TensorDescription& tensor,
                                      absl::Span<const uint8_t> payload, const ServerLimits& limits) {
  if (options.take) return PlanTaken(options, tensor, payload, limits);
  if (static_cast<int64_t>(payload.size()) > limits.max_message_bytes - kMaxHeaderBytes) {
    return Invalid(Reason::kLength, "payload",
                   absl::StrCat(payload.size(), " bytes do not fit into one message of the server's ",
                                limits.max_message_bytes, "; append fewer rows, or let the client encode"));
  }
  if (absl::Status status = CheckNormal(options.unrecorded, {0, kMaxRows}); !status.ok()) {
    return Invalid(Reason::kField, "append.unrecorded", status.message());
  }
  const absl::StatusOr<int64_t> rows = TensorRows(tensor, payload);
  if (!rows.ok()) return rows.status();
  auto header = MakeHeader(options, *rows + TotalRows(options.unrecorded), options.unrecorded);
  if (!header.ok()) return header.status();
  header->payload_kind = tensor;
  AppendPlan plan = OnePiece(*std::move(header));
  auto copy = std::make_shared<Buffer>(payload.size());
  std::copy(payload.begin(), payload.end(), copy->data());
  AppendPiece& piece = plan.pieces[0];
  if (!payload.empty()) piece.payload.push_back(copy->span());
  piece.payload_bytes = static_cast<int64_t>(payload.size());
  piece.owner = std::move(copy);
  plan.bytes = HeldBytes(plan);
  return plan;
}

absl::StatusOr<AppendPlan> PlanUnrecorded(const AppendOptions& options, int64_t rows) {
  if (absl::Status status = CheckRows(options.row_start, rows); !status.ok()) return status;
  std::vector<RowRange> all;
  AppendMerged(all, RowRange::OfSize(options.row_start, rows));
  if (!options.unrecorded.empty() && options.unrecorded != all) {
    return Invalid(Reason::kField, "append.unrecorded", "is not all rows of an append without recorded rows");
  }
  auto header = MakeHeader(options, rows, std::move(all));
  if (!header.ok()) return header.status();
  AppendPlan plan = OnePiece(*std::move(header));
  plan.bytes = HeldBytes(plan);
  return plan;
}

AppendPlan DropPayload(const AppendPlan& plan) {
  AppendHeader header = plan.pieces.front().header;
  const AppendHeader& last = plan.pieces.back().header;
  for (size_t i = 1; i < plan.pieces.size(); ++i) header.token_ids += plan.pieces[i].header.token_ids;
  header.rows.end = last.rows.end;
  header.seal_num_tokens = last.seal_num_tokens;
  header.unrecorded.clear();
  AppendMerged(header.unrecorded, header.rows);
  header.payload_kind = std::monostate();
  AppendPlan dropped = OnePiece(std::move(header));
  dropped.bytes = HeldBytes(dropped);
  return dropped;
}

std::string EncodePut(const std::string& run, const AppendPiece& piece) {
  return EncodeAppendRequest({.run = run, .append = piece.header}, piece.payload_bytes);
}

absl::StatusOr<AppendOutcome> PutOutcome(const ByteChain& answer) {
  const auto ack = ParseAppendAck(answer);
  if (!ack.ok()) return absl::InternalError(absl::StrCat("unreadable ack: ", ack.status().message()));
  if (!ack->error.ok()) return ack->error;
  AppendOutcome outcome{.sample = ack->sample};
  AddAck(*ack, outcome);
  return outcome;
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

}  // namespace routing_replay
