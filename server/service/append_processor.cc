#include "server/service/append_processor.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

// A hash that identifies an append, so that it is recognized when it is sent again.
uint64_t NameOf(absl::string_view run, const AppendHeader& header) {
  const auto name = std::make_tuple(run, absl::string_view(header.sample), static_cast<int32_t>(header.producer),
                                    header.rows.begin, header.rows.end, header.revision, header.resend_key);
  return absl::Hash<decltype(name)>()(name);
}

// True for errors that an append may get because its run was dropped and created again with another geometry.
bool MayBeOfAnotherRun(const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) return true;
  const std::optional<ErrorDetail> detail = GetErrorDetail(status);
  return detail && detail->reason == Reason::kGeometryMismatch;
}

// Copies the header without payload_kind, which may be long. The code that decodes the payload uses the original.
AppendHeader CopyWithoutPayloadKind(AppendHeader& header) {
  auto kind = std::exchange(header.payload_kind, std::monostate());
  AppendHeader copy = header;
  header.payload_kind = std::move(kind);
  return copy;
}

// True if the payload consists of `parts`, in order.
bool PointsTo(const ByteChain& payload, const std::vector<Buffer>& parts) {
  return std::equal(payload.spans().begin(), payload.spans().end(), parts.begin(), parts.end(),
                    [](absl::Span<const uint8_t> span, const Buffer& part) {
                      return span.data() == part.data() && span.size() == part.size();
                    });
}

bool HasPayloadKind(const AppendHeader& header) { return !std::holds_alternative<std::monostate>(header.payload_kind); }

}  // namespace

std::optional<AppendAck> RecentAppends::Find(absl::string_view run, const AppendHeader& header) const {
  if (header.resend_key == 0) return std::nullopt;
  MutexLock lock(mutex_);
  const auto at = known_.find(NameOf(run, header));
  if (at == known_.end()) return std::nullopt;
  const Known& known = at->second;
  return AppendAck{.committed_rows = known.committed_rows,
                   .revision = known.revision,
                   .content_id = known.content_id,
                   .sealed = known.sealed};
}

void RecentAppends::Add(absl::string_view run, const AppendHeader& header, const AppendAck& ack) {
  if (header.resend_key == 0) return;
  const uint64_t name = NameOf(run, header);
  MutexLock lock(mutex_);
  if (!known_.insert_or_assign(name, Known{ack.committed_rows, ack.revision, ack.content_id, ack.sealed}).second)
    return;
  order_.push_back(name);
  if (order_.size() <= kCapacity) return;
  known_.erase(order_.front());
  order_.pop_front();
}

absl::StatusOr<std::vector<Block>> TakeEncodedBlocks(const Geometry& geometry, int32_t block_rows,
                                                     const AppendHeader& header, const ByteChain& payload,
                                                     std::vector<Buffer> parts) {
  const auto& headers = std::get<std::vector<BlockHeader>>(header.payload_kind);
  std::vector<Block> blocks;
  blocks.reserve(headers.size());
  ChainCursor bytes(payload);
  const bool in_parts = parts.size() == headers.size() && PointsTo(payload, parts);
  size_t next_part = 0;
  for (const BlockHeader& h : headers) {
    const auto size = static_cast<size_t>(geometry.block_bytes(h.rows.size(), h.codec));
    if (size > bytes.left()) {
      return Invalid(Reason::kLength, "payload", absl::StrCat("too short: it ends inside block ", ToString(h.rows)));
    }
    Block block{h.rows, h.codec, h.plane_crc32c, {}};
    if (in_parts && parts[next_part].size() == size) {
      block.bytes = std::move(parts[next_part]);
      bytes.Skip(size);
    } else {
      block.bytes = Buffer(size);
      bytes.CopyTo(block.bytes.span());
    }
    ++next_part;
    absl::Status good = CheckShape(geometry, block.view(), block_rows);
    if (good.ok()) good = CheckCrc(geometry, block.view());
    if (good.ok()) good = CheckIds(geometry, block.view());
    if (!good.ok()) return good;
    blocks.push_back(std::move(block));
  }
  if (bytes.left() != 0) {
    return Invalid(Reason::kLength, "payload", absl::StrCat("too long: ", bytes.left(), " bytes after the last block"));
  }
  return blocks;
}

AppendAck AppendProcessor::Process(absl::string_view run, AppendRequest request, ByteReservation reservation) const {
  const uint64_t append_id = request.append->append_id;
  const std::string sample = request.append->sample;
  auto result = Run(run, request, std::move(reservation));
  AppendAck ack;
  if (result.ok()) {
    ack = *std::move(result);
    recent_.Add(run, *request.append, ack);
  } else {
    ack.error = WithSample(result.status(), sample);
  }
  ack.append_id = append_id;
  ack.sample = sample;
  return ack;
}

std::optional<AppendAck> AppendProcessor::AckOfGone(absl::string_view run, const AppendHeader& header) const {
  std::optional<AppendAck> ack = recent_.Find(run, header);
  if (!ack) return std::nullopt;
  const absl::Status there = store_.Stat(run, header.producer, {.sample = header.sample}).status();
  const bool gone = GetErrorDetail(there).value_or(ErrorDetail()).reason == Reason::kNoSample;
  return gone ? ack : std::nullopt;
}

absl::StatusOr<AppendAck> AppendProcessor::Run(absl::string_view run, AppendRequest& request,
                                               ByteReservation reservation) const {
  if (std::optional<AppendAck> ack = AckOfGone(run, *request.append)) return *std::move(ack);
  // `once`: the store may take the payload's buffers; then the append cannot be tried again if the run turns out to
  // have been dropped and created again. Only a store that never waits gets them: what it knows of a run is not stale.
  const bool once = !request.payload_parts.empty() && !store_.MayWait();
  RR_ASSIGN_OR_RETURN(const auto known, store_.KnownRun(run));
  const int64_t reserved = reservation.bytes();
  std::vector<Buffer> parts;
  if (once) parts = std::move(request.payload_parts);
  auto ack = Append(known, request, std::move(parts), std::move(reservation));
  if (ack.ok() || once || !MayBeOfAnotherRun(ack.status())) return ack;
  const auto now = store_.GetRun(run);
  if (absl::IsNotFound(now.status())) return now.status();
  if (!now.ok() || now->geometry == known.geometry) return ack;
  RR_ASSIGN_OR_RETURN(auto again, ReserveOrMakeRoom(store_, budget_, reserved));
  return Append(*now, request, /*parts=*/{}, std::move(again));
}

absl::StatusOr<AppendAck> AppendProcessor::Append(const RunInfo& run, AppendRequest& request, std::vector<Buffer> parts,
                                                  ByteReservation reservation) const {
  const Geometry& geometry = *run.geometry;
  const AppendHeader& header = *request.append;
  AppendCommand command{.run = run.run, .geometry = run.geometry, .header = CopyWithoutPayloadKind(*request.append)};
  if (const auto* tensor = std::get_if<TensorDescription>(&header.payload_kind)) {
    // Decompression may need far more memory than was credited for the bytes on the wire. A raw_size over the limit
    // reserves nothing here: the decoder rejects it.
    const bool inflates = tensor->compression == Compression::kZstd && tensor->raw_size <= max_payload_bytes_;
    RR_ASSIGN_OR_RETURN(auto extra, ReserveOrMakeRoom(store_, budget_, inflates ? tensor->raw_size : 0));
    Buffer scratch;
    RR_ASSIGN_OR_RETURN(auto decoded, DecodeTensor(geometry, *tensor, request.payload.Flatten(scratch),
                                                   {.row_start = header.rows.begin,
                                                    .unrecorded = header.unrecorded,
                                                    .expected_rows = header.rows.size(),
                                                    .block_rows = run.options.block_rows,
                                                    .codec = run.options.codec,
                                                    .max_payload_bytes = max_payload_bytes_}));
    command.header.unrecorded = std::move(decoded.unrecorded);
    command.blocks = std::move(decoded.blocks);
  } else if (HasPayloadKind(header)) {
    RR_ASSIGN_OR_RETURN(auto blocks,
                        TakeEncodedBlocks(geometry, run.options.block_rows, header, request.payload, std::move(parts)));
    command.blocks = std::move(blocks);
  } else if (request.payload.size() > 0) {
    return Invalid(Reason::kField, "payload", "must be described by append.tensor or append.blocks");
  }
  command.reservation = std::move(reservation);
  return store_.Append(std::move(command));
}

}  // namespace routing_replay::server
