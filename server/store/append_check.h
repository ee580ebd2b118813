// Checks of an append that need no sample: what every store refuses before it looks anything up.
#ifndef SERVER_STORE_APPEND_CHECK_H_
#define SERVER_STORE_APPEND_CHECK_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "proto/wire/message/append_message.h"

namespace routing_replay::server {

// Ids, ranges, lengths of texts and tokens are inside their limits, and `blocks` show exactly the recorded rows of the
// header, ascending. INVALID_ARGUMENT (kField, kRowCount) naming the field. Reads no payload byte. Thread-safe.
absl::Status CheckAppend(const AppendHeader& header, absl::Span<const Block> blocks);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_APPEND_CHECK_H_
