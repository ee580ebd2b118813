// What a reader asks for and what it is told of each sample: the C++ form of ReadRequest and SampleRecord in
// read.proto.
#ifndef ROUTING_REPLAY_WIRE_READ_REQUEST_H_
#define ROUTING_REPLAY_WIRE_READ_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample_id.h"
#include "routing_replay/wire/sample_state.h"

namespace routing_replay {

struct SampleRead {
  std::string sample;
  int64_t handle = 0;          // Used where sample is empty.
  std::vector<RowRange> rows;  // Normal list. Empty: all rows of a sealed sample, what is committed of an unsealed one.
  std::optional<int64_t> num_tokens;
  std::vector<TokenCheck> token_checks;
  std::optional<int64_t> min_weight_version;
  std::optional<int64_t> max_weight_version;
};

struct ReadRequest {
  std::string run;
  Producer producer = Producer::kRollout;
  std::vector<int32_t> layers;  // Global decoder layer ids, strictly ascending. Empty: all MoE layers.
  std::vector<SampleRead> samples;
  bool wait = false;  // For rows that are not committed yet, and for samples that nobody has begun.
  int32_t max_message_bytes = 0;
  bool only_begun = false;  // `wait` does not wait for samples that nobody has begun.
};

// Numbers are those of SampleRecord.SampleStatus.
enum class SampleStatus : uint8_t {
  kUnspecified = 0,
  kOk = 1,
  kNotFound = 2,
  kNotRecorded = 3,
  kNotReady = 4,
  kLost = 5,
  kVersionRefused = 6,
  kLengthMismatch = 7,
  kTokensMismatch = 8,
  kOutOfRange = 9,
  kUnavailable = 10,
  kTokensNotKnown = 11,
};
inline constexpr SampleStatus kLastSampleStatus = SampleStatus::kTokensNotKnown;
const char* SampleStatusName(SampleStatus status);

struct SampleRecord {
  int32_t index = 0;  // Position in ReadRequest::samples.
  SampleStatus status = SampleStatus::kUnspecified;
  std::string message;
  int64_t committed_rows = 0;
  std::optional<int64_t> num_tokens;
  int64_t revision = 0;
  uint64_t content_id = 0;  // As on the wire: 0 where there is none.
  std::vector<RowRange> unrecorded;
  std::vector<WeightSpan> weights;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_READ_REQUEST_H_
