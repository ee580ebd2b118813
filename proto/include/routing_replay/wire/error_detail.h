// The typed part of an error: what ErrorDetail in common.proto carries, without protobuf.
#ifndef ROUTING_REPLAY_WIRE_ERROR_DETAIL_H_
#define ROUTING_REPLAY_WIRE_ERROR_DETAIL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace routing_replay {

// Numbers are those of ErrorDetail.Reason.
enum class Reason : int32_t {
  kUnspecified = 0,
  kField = 1,
  kEncoding = 2,
  kDType = 3,
  kShape = 4,
  kLength = 5,
  kIdRange = 6,
  kPartialRow = 7,
  kDuplicateId = 8,
  kAllZeroLayer = 9,
  kChecksum = 10,
  kRowCount = 11,
  kGap = 20,
  kOldRevision = 21,
  kSealed = 22,
  kNotCommitted = 23,
  kGeometryMismatch = 24,
  kVersionMismatch = 25,
  kOtherTokens = 30,
  kConflictingRows = 31,
  kHandleCollision = 32,
  kOverBudget = 40,
  kNoRun = 50,
  kNoSample = 51,
  kDraining = 60,
};
const char* ReasonName(Reason reason);

struct ErrorDetail {
  Reason reason = Reason::kUnspecified;
  std::string field;
  std::string sample;
  std::optional<int64_t> row;
  std::optional<int32_t> layer;  // Global decoder layer id.
  std::optional<int64_t> committed_rows;
  std::optional<int64_t> revision;
  std::optional<int64_t> first_differing_block;
  std::optional<int32_t> retry_after_ms;
  friend bool operator==(const ErrorDetail&, const ErrorDetail&) = default;
};

// A status that carries `detail` as its payload. The message is for people and should name the field, row and layer
// itself.
absl::Status MakeError(absl::StatusCode code, absl::string_view message, const ErrorDetail& detail);
// INVALID_ARGUMENT with the message "field: what". Without `detail` and `reason`, the reason is kField.
absl::Status Invalid(const ErrorDetail& detail, absl::string_view what);
absl::Status Invalid(Reason reason, absl::string_view field, absl::string_view what);
absl::Status Invalid(absl::string_view field, absl::string_view what);
// The detail of `status`, or nothing if it carries none.
std::optional<ErrorDetail> GetErrorDetail(const absl::Status& status);
// `status` with the sample named in its detail (a new detail if it has none). OK stays OK.
absl::Status WithSample(const absl::Status& status, absl::string_view sample);

// google.rpc.Status bytes (code, message, one ErrorDetail in details): what gRPC carries as grpc-status-details-bin.
std::string EncodeRpcStatus(const absl::Status& status);
// A status of `code` and `message` with the ErrorDetail in the bytes; without a detail if they are malformed or hold no
// ErrorDetail. CANCELLED without bytes becomes UNAVAILABLE: it is how gRPC ends the calls of a stopping server.
absl::Status DecodeRpcStatus(absl::StatusCode code, absl::string_view message, absl::string_view rpc_status_bytes);

// routing_replay.v1.Status bytes: what an ack or a rejected credit request carries inside a stream.
std::string EncodeStreamStatus(const absl::Status& status);
// The inverse; a code that this version does not know becomes UNKNOWN, malformed bytes become INTERNAL.
absl::Status DecodeStreamStatus(absl::string_view bytes);

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_ERROR_DETAIL_H_
