#include "server/service/read_session.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/block.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

SampleVerdict NotReady(std::string message) { return {SampleStatus::kNotReady, std::move(message)}; }

// Compares the sample's rows or tokens with the expected number of tokens. If none is expected, checks only the seal.
SampleVerdict CheckLength(const SampleState& state, const SampleRead& asked, bool until_seal) {
  if (!asked.num_tokens) {
    if (state.sealed() || !asked.rows.empty() || !until_seal) return {};
    return NotReady(absl::StrCat("not sealed; ", state.committed_rows, " rows committed"));
  }
  if (state.sealed()) {
    if (*state.num_tokens == *asked.num_tokens) return {};
    return {SampleStatus::kLengthMismatch,
            absl::StrCat("sealed with ", *state.num_tokens, " tokens, expected ", *asked.num_tokens)};
  }
  if (state.committed_rows > *asked.num_tokens - 1) {
    return {SampleStatus::kLengthMismatch,
            absl::StrCat("has ", state.committed_rows, " committed rows, too many for the expected ", *asked.num_tokens,
                         " tokens")};
  }
  return NotReady(
      absl::StrCat("not sealed, so its number of tokens is not known; ", state.committed_rows, " rows committed"));
}

SampleVerdict CheckRows(const SampleState& state, const SampleRead& asked) {
  const int64_t end = asked.rows.empty() ? 0 : asked.rows.back().end;
  if (end <= state.committed_rows) return {};
  const std::string what = absl::StrCat("rows up to ", end, " requested, ", state.committed_rows, " committed");
  if (state.sealed()) return {SampleStatus::kOutOfRange, what};
  return NotReady(what);
}

SampleVerdict CheckTokens(const SampleState& state, const SampleRead& asked,
                          const std::function<std::optional<bool>(const TokenCheck&)>& matches) {
  for (const TokenCheck& check : asked.token_checks) {
    if (check.rows > state.committed_rows && !state.sealed()) {
      return NotReady(
          absl::StrCat("token check requested at row ", check.rows, ", ", state.committed_rows, " rows committed"));
    }
    const std::optional<bool> same = matches(check);
    if (same.value_or(false)) continue;
    return {same ? SampleStatus::kTokensMismatch : SampleStatus::kTokensNotKnown,
            absl::StrCat(same ? "other tokens than expected" : "tokens not known", " before row ", check.rows)};
  }
  return {};
}

SampleVerdict CheckWeights(const SampleState& state, const SampleRead& asked) {
  if (!asked.min_weight_version && !asked.max_weight_version) return {};
  const std::vector<RowRange> all = {{0, state.committed_rows}};
  for (const WeightSpan& span : state.weights) {
    if (Clip(asked.rows.empty() ? all : asked.rows, span.rows).empty()) continue;
    const bool known = span.version != kUnknownWeightVersion;
    if (known && span.version >= asked.min_weight_version.value_or(span.version) &&
        span.version <= asked.max_weight_version.value_or(span.version)) {
      continue;
    }
    return {SampleStatus::kVersionRejected, absl::StrCat("rows ", ToString(span.rows), " are of weight version ",
                                                         known ? absl::StrCat(span.version) : std::string("unknown"))};
  }
  return {};
}

SampleVerdict CheckRecorded(const SampleState& state) {
  if (!state.sealed() || state.committed_rows == 0) return {};
  if (TotalRows(state.unrecorded) < state.committed_rows) return {};
  return {SampleStatus::kNotRecorded, "sealed, but all of its rows are unrecorded"};
}

constexpr int64_t kMinMessageBytes = 64 << 10;
constexpr int64_t kMaxMessageBytes = 4 << 20;
// Approximate size of a record, a piece and a row range in a message's table.
constexpr int64_t kRecordBytes = 64;
constexpr int64_t kPieceBytes = 32;
constexpr int64_t kRangeBytes = 12;
// Pieces shorter than this are copied, which is cheaper than sending them by reference.
constexpr int64_t kReferenceBytes = 4 << 10;
// Memory of a copied piece in addition to its bytes. If a read takes a few rows from each of many blocks, this is far
// more than the bytes themselves.
constexpr int64_t kCopyBytes = 256;

SampleRecord MakeRecord(int32_t index, SampleState state, SampleVerdict verdict) {
  return {.index = index,
          .status = verdict.status,
          .message = std::move(verdict.message),
          .committed_rows = state.committed_rows,
          .num_tokens = state.num_tokens,
          .revision = state.revision,
          .content_id = state.content_id,
          .unrecorded = std::move(state.unrecorded),
          .weights = std::move(state.weights)};
}

int64_t TableBytes(const SampleRecord& record) {
  const size_t ranges = record.unrecorded.size() + record.weights.size();
  return kRecordBytes + static_cast<int64_t>(record.message.size() + ranges * kRangeBytes);
}

int64_t TableBytes(const Piece& piece) {
  return kPieceBytes + static_cast<int64_t>(piece.cut_crc32c.size() * sizeof(uint32_t));
}

}  // namespace

SampleVerdict CheckSample(const SampleState& state, const SampleRead& asked, bool until_seal,
                          const std::function<std::optional<bool>(const TokenCheck&)>& matches) {
  SampleVerdict verdict = CheckLength(state, asked, until_seal);
  if (verdict.status == SampleStatus::kOk) verdict = CheckRows(state, asked);
  if (verdict.status == SampleStatus::kOk) verdict = CheckTokens(state, asked, matches);
  if (verdict.status == SampleStatus::kOk) verdict = CheckWeights(state, asked);
  if (verdict.status == SampleStatus::kOk) verdict = CheckRecorded(state);
  return verdict;
}

absl::StatusOr<ByteReservation> ReserveForRead(ByteBudget& memory, int64_t bytes) {
  auto reservation = memory.Reserve(bytes);
  if (reservation.ok()) return reservation;
  constexpr char kReadRequests[] = "read-requests";
  ErrorDetail detail = GetErrorDetail(reservation.status()).value_or(ErrorDetail{.reason = Reason::kOverBudget});
  detail.field = kReadRequests;
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat(kReadRequests, ": the request takes ", bytes, " bytes, but only ", memory.limit() - memory.used(),
                   " of ", memory.limit(), " are free; read fewer samples at a time, or try again later"),
      detail);
}

absl::StatusOr<std::unique_ptr<ReadSession>> ReadSession::Create(Store& store, ByteBudget& memory, ReadRequest request,
                                                                 int64_t default_message_bytes) {
  RR_ASSIGN_OR_RETURN(auto run, store.GetRun(request.run));
  auto session = std::unique_ptr<ReadSession>(new ReadSession(store, memory, std::move(request)));
  session->geometry_ = run.geometry;
  const int64_t asked = session->request_.max_message_bytes;
  session->message_bytes_ = std::clamp(asked > 0 ? asked : default_message_bytes, kMinMessageBytes, kMaxMessageBytes);
  if (session->request_.layers.empty()) {
    for (const LayerRouting& layer : session->geometry_->layers()) session->request_.layers.push_back(layer.layer_id);
  }
  for (const int32_t layer : session->request_.layers) {
    const auto ordinal = session->geometry_->FindOrdinal(layer);
    if (!ordinal) {
      ErrorDetail detail{.reason = Reason::kField, .field = "layers"};
      detail.layer = layer;
      return MakeError(absl::StatusCode::kInvalidArgument,
                       absl::StrCat("layers: decoder layer ", layer, " has no routes"), detail);
    }
    session->ordinals_.push_back(*ordinal);
  }
  return session;
}

ReadStep ReadSession::Next(bool waiting_is_over) {
  ReadStep step;
  pieces_.clear();
  table_bytes_ = copied_bytes_ = 0;
  message_memory_.Release();  // The caller calls Next only after it has sent the last message.
  auto message = memory_.Reserve(message_bytes_);
  room_ = message.ok() ? message_bytes_ : kMinMessageBytes;
  TakeWithdrawal(step);
  bool must_wait = false;
  while (next_sample_ < request_.samples.size() && !Full(step) && failure_.ok()) {
    if (!open_) {
      const Open opened = OpenSample(step, waiting_is_over);
      if (opened == Open::kMustWait) {
        must_wait = true;
        break;
      }
      open_ = opened == Open::kReady;
    }
    if (open_) AddPieces(step);
    if (open_ && next_rows_ < snapshot_.rows.size()) break;  // The message is full.
    open_ = false;
    snapshot_ = {};
    message_memory_.Merge(std::move(snapshot_memory_));
    ++next_sample_;
  }
  if (pieces_.empty() && step.records.empty()) TakeWithdrawal(step);
  if (!step.records.empty() || !pieces_.empty()) {
    step.kind = ReadStep::Kind::kMessage;
    step.header = EncodeReadResponse(step.records, pieces_, step.payload_bytes);
    const int64_t held = table_bytes_ + copied_bytes_;
    if (message.ok()) message_memory_.Merge(message->Split(std::min(held, message->bytes())));
  } else if (!failure_.ok()) {
    step.kind = ReadStep::Kind::kFailed;
    step.failure = failure_;
  } else if (must_wait) {
    step.kind = ReadStep::Kind::kWait;
    step.wait_for = {request_.samples[next_sample_].sample, request_.samples[next_sample_].handle};
  }
  return step;
}

int64_t ReadSession::Room(const ReadStep& step) const { return room_ - table_bytes_ - step.payload_bytes; }

bool ReadSession::Full(const ReadStep& step) const { return withdrawal_ || Room(step) <= 0; }

void ReadSession::AddRecord(ReadStep& step, SampleRecord record) {
  table_bytes_ += TableBytes(record);
  step.records.push_back(std::move(record));
}

ReadSession::Open ReadSession::OpenSample(ReadStep& step, bool waiting_is_over) {
  const SampleRead& asked = request_.samples[next_sample_];
  const auto index = static_cast<int32_t>(next_sample_);
  const SampleRef ref{asked.sample, asked.handle};
  static constexpr RowRange kAllRows{0, std::numeric_limits<int64_t>::max()};
  const auto admit = [&](int64_t bytes) -> absl::Status {
    snapshot_memory_.Release();
    RR_ASSIGN_OR_RETURN(auto reserved, ReserveForRead(memory_, bytes));
    snapshot_memory_ = std::move(reserved);
    return absl::OkStatus();
  };
  auto snapshot =
      store_.Snapshot(request_.run, request_.producer, ref,
                      asked.rows.empty() ? absl::MakeConstSpan(&kAllRows, 1) : absl::MakeConstSpan(asked.rows), admit);
  const bool wait = request_.wait && !waiting_is_over;
  if (!snapshot.ok()) {
    const bool missing = absl::IsNotFound(snapshot.status());
    const bool may_begin =
        missing && GetErrorDetail(snapshot.status()).value_or(ErrorDetail()).reason != Reason::kNoRun;
    if (may_begin && wait && !request_.only_begun) {
      snapshot_memory_.Release();
      return Open::kMustWait;
    }
    if (!missing && !absl::IsDataLoss(snapshot.status())) {
      failure_ = snapshot.status();
      return Open::kRejected;
    }
    AddRecord(step, {.index = index,
                     .status = missing ? SampleStatus::kNotFound : SampleStatus::kLost,
                     .message = std::string(snapshot.status().message())});
    return Open::kRejected;
  }
  SampleVerdict verdict = CheckSample(
      snapshot->state, asked, request_.wait,
      [&](const TokenCheck& check) -> std::optional<bool> { return snapshot->tokens.Fits(check.rows, check.crc32c); });
  if (verdict.status == SampleStatus::kNotReady && wait) {
    snapshot_memory_.Release();
    return Open::kMustWait;
  }
  const bool ready = verdict.status == SampleStatus::kOk;
  AddRecord(step, MakeRecord(index, std::move(snapshot->state), std::move(verdict)));
  if (!ready) return Open::kRejected;
  snapshot_ = *std::move(snapshot);
  next_rows_ = 0;
  next_layer_ = 0;
  return Open::kReady;
}

void ReadSession::AddPieces(ReadStep& step) {
  const auto layers = static_cast<int32_t>(ordinals_.size());
  while (next_rows_ < snapshot_.rows.size() && !Full(step)) {
    const StoredRows& stored = snapshot_.rows[next_rows_];
    if (!loaded_) {
      absl::StatusOr<LoadedBlock> loaded = Load(stored.block);
      if (!loaded.ok()) return StopSample(loaded.status());
      loaded_ = *std::move(loaded);
    }
    const int32_t end = RunEnd({loaded_->view, stored.rows}, next_layer_, Room(step));
    AddRun(step, stored.rows, next_layer_, end);
    if (next_rows_ >= snapshot_.rows.size()) return;  // The sample was withdrawn.
    next_layer_ = end;
    if (next_layer_ == layers) {
      next_layer_ = 0;
      loaded_.reset();
      ++next_rows_;
    }
  }
}

// A *cut* is the part of a layer's plane that holds the requested rows. Returns the end of the layers, from
// `layer_begin` on, whose cuts can be sent as one piece: they have the same bit offset and fit into `room` together. At
// least one layer.
int32_t ReadSession::RunEnd(const BlockRows& stored, int32_t layer_begin, int64_t room) const {
  const BlockView& block = stored.block;
  const int64_t row = stored.rows.begin - block.rows.begin;
  const int64_t rows = stored.rows.size();
  const int32_t bit_offset = geometry_->cut_bit_offset(ordinals_[layer_begin], row, block.codec);
  auto end = layer_begin;
  for (; end < static_cast<int32_t>(ordinals_.size()); ++end) {
    if (geometry_->cut_bit_offset(ordinals_[end], row, block.codec) != bit_offset) break;
    room -= geometry_->cut_bytes(ordinals_[end], row, rows, block.codec);
    if (room < 0 && end > layer_begin) break;
  }
  return end;
}

void ReadSession::AddRun(ReadStep& step, RowRange rows, int32_t layer_begin, int32_t layer_end) {
  const BlockView& block = loaded_->view;
  const int64_t row = rows.begin - block.rows.begin;
  Piece piece{.sample_index = static_cast<int32_t>(next_sample_),
              .layer_begin = layer_begin,
              .layer_count = layer_end - layer_begin,
              .rows = rows,
              .codec = block.codec,
              .bit_offset = geometry_->cut_bit_offset(ordinals_[layer_begin], row, block.codec)};
  for (int32_t i = layer_begin; i < layer_end; ++i) {
    piece.bytes += geometry_->cut_bytes(ordinals_[i], row, piece.rows.size(), block.codec);
  }
  if (piece.rows == block.rows) {
    for (int32_t i = layer_begin; i < layer_end; ++i) piece.cut_crc32c.push_back(block.plane_crc32c[ordinals_[i]]);
    AddWholePlanes(step, piece);
  } else {
    AddCut(step, piece);
    if (next_rows_ >= snapshot_.rows.size()) return;
  }
  step.payload_bytes += piece.bytes;
  table_bytes_ += TableBytes(piece);
  pieces_.push_back(std::move(piece));
}

// Planes of neighbouring ordinals are adjacent in the block, so they are sent together, by reference if they are long.
void ReadSession::AddWholePlanes(ReadStep& step, const Piece& piece) {
  const BlockView& block = loaded_->view;
  for (int32_t i = piece.layer_begin, end = piece.layer_begin + piece.layer_count; i < end;) {
    int32_t next = i + 1;
    while (next < end && ordinals_[next] == ordinals_[next - 1] + 1) ++next;
    const int64_t from = geometry_->plane_offset(ordinals_[i], block.rows.size(), block.codec);
    const int64_t to = geometry_->plane_offset(ordinals_[next - 1] + 1, block.rows.size(), block.codec);
    const absl::Span<const uint8_t> bytes = block.bytes.subspan(from, to - from);
    if (to - from >= kReferenceBytes) {
      step.payload.push_back({bytes, loaded_->owner});
    } else {
      copied_bytes_ += to - from;
      table_bytes_ += kCopyBytes;
      auto copy = std::make_shared<Buffer>(to - from);
      std::copy(bytes.begin(), bytes.end(), copy->data());
      step.payload.push_back({copy->span(), copy});
    }
    i = next;
  }
}

void ReadSession::AddCut(ReadStep& step, Piece& piece) {
  const BlockView& block = loaded_->view;
  const int64_t row = piece.rows.begin - block.rows.begin;
  copied_bytes_ += piece.bytes;
  table_bytes_ += kCopyBytes;
  auto copy = std::make_shared<Buffer>(piece.bytes);
  absl::Span<uint8_t> out = copy->span();
  for (int32_t i = piece.layer_begin; i < piece.layer_begin + piece.layer_count; ++i) {
    const int64_t bytes = geometry_->cut_bytes(ordinals_[i], row, piece.rows.size(), block.codec);
    const auto crc = CutPlane(*geometry_, block, ordinals_[i], piece.rows, out.subspan(0, bytes));
    if (!crc.ok()) return Withdraw(crc.status());
    piece.cut_crc32c.push_back(*crc);
    out.remove_prefix(bytes);
  }
  step.payload.push_back({copy->span(), copy});
}

void ReadSession::StopSample(const absl::Status& status) {
  if (absl::IsDataLoss(status)) return Withdraw(status);
  failure_ = status;
  loaded_.reset();
  next_rows_ = snapshot_.rows.size();
}

// The open sample turned out to be damaged: a second record cancels the first, and no more pieces follow. The second
// record begins a new message, after all pieces that it cancels.
void ReadSession::Withdraw(const absl::Status& lost) {
  withdrawal_ = SampleRecord{.index = static_cast<int32_t>(next_sample_),
                             .status = SampleStatus::kLost,
                             .message = std::string(lost.message())};
  loaded_.reset();
  next_rows_ = snapshot_.rows.size();
}

void ReadSession::TakeWithdrawal(ReadStep& step) {
  if (withdrawal_) AddRecord(step, *std::move(withdrawal_));
  withdrawal_.reset();
}

}  // namespace routing_replay::server
