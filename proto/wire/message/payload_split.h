// Takes the one big field out of a message without copying it.
#ifndef PROTO_WIRE_MESSAGE_PAYLOAD_SPLIT_H_
#define PROTO_WIRE_MESSAGE_PAYLOAD_SPLIT_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/wire/message/byte_chain.h"

namespace routing_replay {
inline namespace wire {

struct SplitMessage {
  std::string header;  // Every field but the payload, as it stood on the wire.
  ByteChain payload;   // Points into the bytes given. Empty if the field is absent; of several the last one counts.
};

// Splits off the length-delimited field `payload_field`, wherever in the message it stands and however the bytes are
// spread over spans. Looks at the tags of the outermost message only. INVALID_ARGUMENT (kEncoding) if they are
// malformed.
absl::StatusOr<SplitMessage> SplitPayload(const ByteChain& bytes, int payload_field);
// Tag and length of the field, after a message without it: the payload's bytes are sent right behind. Nothing for 0.
void AppendPayloadPrefix(int payload_field, size_t payload_size, std::string& message);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_PAYLOAD_SPLIT_H_
