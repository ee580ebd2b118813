// Splits the payload field off a message without copying it.
#ifndef PROTO_WIRE_MESSAGE_PAYLOAD_SPLIT_H_
#define PROTO_WIRE_MESSAGE_PAYLOAD_SPLIT_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/wire/message/byte_chain.h"

namespace routing_replay {
inline namespace wire {

struct SplitMessage {
  std::string header;  // Every field but the payload, as it stood on the wire.
  // The value of the payload field; points into the message's bytes. Empty if the field is absent. If it occurs several
  // times, the last one counts.
  ByteChain payload;
};

// Splits off the length-delimited field `payload_field`, wherever in the message it is and however the bytes are spread
// over spans. Reads only the tags of the outermost message. INVALID_ARGUMENT (kEncoding) if they are malformed.
absl::StatusOr<SplitMessage> SplitPayload(const ByteChain& bytes, int payload_field);
// Appends the tag and the length of the payload field to a message that has no payload; the payload's bytes must be
// sent right after it. Does nothing for size 0.
void AppendPayloadPrefix(int payload_field, size_t payload_size, std::string& message);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_PAYLOAD_SPLIT_H_
