// Protobuf messages as records: their bytes, then the CRC32C of these (4 bytes, little-endian). Pure; thread-safe.
#ifndef SERVER_STORE_RECORDS_FRAMED_RECORD_H_
#define SERVER_STORE_RECORDS_FRAMED_RECORD_H_

#include <google/protobuf/message_lite.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace routing_replay::server {

// DATA_LOSS (kChecksum): "a stored record is damaged: WHAT".
absl::Status DamagedRecord(absl::string_view what);

std::string FrameRecord(const google::protobuf::MessageLite& message);
// Fills `message`. DamagedRecord if the CRC does not fit or the bytes are no such message.
absl::Status UnframeRecord(absl::string_view record, google::protobuf::MessageLite& message);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_RECORDS_FRAMED_RECORD_H_
