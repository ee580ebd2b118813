// The messages of Read as values, as in append_message.h; read.proto is the contract.
#ifndef PROTO_WIRE_MESSAGE_READ_MESSAGE_H_
#define PROTO_WIRE_MESSAGE_READ_MESSAGE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/message/byte_chain.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay {
inline namespace wire {

// Consecutive layers x consecutive rows of one block; see Piece in read.proto. The bytes are in the message's payload.
struct Piece {
  int32_t sample_index = 0;
  int32_t layer_begin = 0;  // Position in the request's layer list.
  int32_t layer_count = 0;
  RowRange rows;  // Absolute.
  Codec codec = Codec::kRaw;
  int32_t bit_offset = 0;
  int64_t bytes = 0;
  std::vector<uint32_t> cut_crc32c;  // One per layer.
};

struct ReadResponse {
  std::vector<SampleRecord> records;
  std::vector<Piece> pieces;
  ByteChain payload;  // The bytes of all pieces, in order. Points into the bytes that were parsed.
};

// Limits on token checks: for one sample (one per window, plus one for the last row), and for one read.
inline constexpr size_t kMaxSampleTokenChecks = kMaxRows / kMinBlockRows + 1;
inline constexpr size_t kMaxReadTokenChecks = size_t{1} << 20;

std::string EncodeReadRequest(const ReadRequest& request);
// `admit` is called once, before the request is built, with an upper bound of the memory that the request will take: an
// empty sample takes two bytes in the message and seventy times that in memory. If `admit` returns an error, that error
// is returned.
absl::StatusOr<ReadRequest> ParseReadRequest(
    const ByteChain& bytes,
    const std::function<absl::Status(int64_t)>& admit = [](int64_t) { return absl::OkStatus(); });

// The encoded message without the payload's bytes. Send this, then exactly `payload_size` payload bytes.
std::string EncodeReadResponse(absl::Span<const SampleRecord> records, absl::Span<const Piece> pieces,
                               size_t payload_size);
// INVALID_ARGUMENT if malformed, or if the pieces' bytes do not add up to the payload.
absl::StatusOr<ReadResponse> ParseReadResponse(const ByteChain& bytes);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_READ_MESSAGE_H_
