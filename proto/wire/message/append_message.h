// The messages of Append and Put as values. append.proto is the contract. All but the payload goes through the
// generated classes; the payload's bytes are split off and sent by reference.
#ifndef PROTO_WIRE_MESSAGE_APPEND_MESSAGE_H_
#define PROTO_WIRE_MESSAGE_APPEND_MESSAGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/message/byte_chain.h"
#include "proto/wire/payload/tensor_payload.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay {
inline namespace wire {

struct PrefixReference {
  std::string sample;
  int64_t rows = 0;
  int64_t revision = 0;
  friend bool operator==(const PrefixReference&, const PrefixReference&) = default;
};

struct BlockHeader {
  RowRange rows;
  Codec codec = Codec::kRaw;
  std::vector<uint32_t> plane_crc32c;
};

// The AppendHeader of append.proto, which explains the fields.
struct AppendHeader {
  uint64_t append_id = 0;
  std::string sample;
  Producer producer = Producer::kRollout;
  RowRange rows;  // [row_start, row_start + rows)
  std::vector<RowRange> unrecorded;
  int64_t revision = 0;
  uint64_t restart_nonce = 0;
  std::optional<int64_t> group;
  int64_t weight_version = kUnknownWeightVersion;
  std::string weight_label;
  std::string token_ids;  // 4 bytes per row, or empty.
  std::optional<uint32_t> token_check_start;
  std::optional<int64_t> seal_num_tokens;
  std::optional<PrefixReference> prefix;
  std::string engine;
  uint64_t resend_key = 0;
  // monostate: no recorded rows and no payload.
  std::variant<std::monostate, TensorDescription, std::vector<BlockHeader>> payload_kind;
};

// A payload of at most this size may be sent without credit: asking for credit would take as long as sending the
// payload.
inline constexpr int64_t kFreePayloadBytes = 32 << 10;

struct AppendRequest {
  std::string run;
  uint64_t want_bytes = 0;
  std::optional<AppendHeader> append;
  ByteChain payload;  // Points into the bytes that were parsed.
  // The same payload as one buffer per block, if the transport received it that way; otherwise empty. Not part of the
  // encoded message.
  std::vector<Buffer> payload_parts;
};

// The encoded message without the payload's bytes. Send this, then exactly `payload_size` payload bytes.
std::string EncodeAppendRequest(const AppendRequest& request, size_t payload_size);
// INVALID_ARGUMENT naming the field (kField), or for bytes that are not a message (kEncoding). Unknown fields are
// skipped. `request.payload` points into `bytes`.
absl::StatusOr<AppendRequest> ParseAppendRequest(const ByteChain& bytes);
// The checks of ParseAppendRequest that concern the header alone.
absl::Status CheckAppendHeader(const AppendHeader& header);

// Names the append in a message that ParseAppendRequest rejects because of the append's own values. So the error can
// become the ack of that append, and the stream goes on.
struct RejectedAppend {
  std::string run;
  uint64_t want_bytes = 0;
  uint64_t append_id = 0;
  std::string sample;  // Empty if it is not a valid id.
  size_t payload_bytes = 0;
};
// Nothing if the message is malformed or has no append, an invalid run, or too long a list: the error ends the stream.
std::optional<RejectedAppend> ParseRejectedAppend(const ByteChain& bytes);

struct Credit {
  uint64_t granted_bytes = 0;
  absl::Status rejection;
};

struct AppendAck {
  uint64_t append_id = 0;
  std::string sample;
  int64_t committed_rows = 0;
  int64_t revision = 0;
  uint64_t content_id = 0;
  bool sealed = false;
  int64_t trimmed_rows = 0;
  int64_t conflicting_rows = 0;
  int64_t late_rows = 0;
  int64_t unrecorded_rows = 0;
  int64_t unverified_rows = 0;
  absl::Status error;  // With its ErrorDetail.
};

struct AppendResponse {
  std::optional<Credit> credit;
  std::optional<AppendAck> ack;
};

std::string EncodeAppendAck(const AppendAck& ack);  // Also the answer of Put.
absl::StatusOr<AppendAck> ParseAppendAck(const ByteChain& bytes);
std::string EncodeAppendResponse(const AppendResponse& response);
absl::StatusOr<AppendResponse> ParseAppendResponse(const ByteChain& bytes);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_APPEND_MESSAGE_H_
