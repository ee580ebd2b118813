// Samples: their ids and handles, the state of a sample without its rows, how safe its rows are, and what a reader
// requests and receives. The C++ form of SampleState in common.proto, and of ReadRequest and SampleRecord in
// read.proto.
#ifndef ROUTING_REPLAY_WIRE_SAMPLE_H_
#define ROUTING_REPLAY_WIRE_SAMPLE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay {

// Which forward pass made the rows. Values are those of the wire.
enum class Producer : uint8_t { kRollout = 1, kTrainer = 2 };
const char* ProducerName(Producer producer);

// INVALID_ARGUMENT unless `id` is [A-Za-z0-9._:/-]{1,128}; `field` names it in the message. Run names obey the same
// rule.
absl::Status CheckId(absl::string_view id, absl::string_view field);

// The handle of a sample id: the low 56 bits of XXH64 of its bytes with seed 0. Needs no server call; equal on every
// machine. If two ids of one run have the same handle, the second sample's first append is rejected. Among 10^6 samples
// the chance of that is 10^-5.
inline constexpr int kHandleBits = 56;
int64_t SampleHandle(absl::string_view sample_id);
// The SampleHandle inside a handle that a batch carries. With several servers, the highest byte of the batch's handle
// says which server has the sample (Run::Handle).
constexpr int64_t BareHandle(int64_t handle) { return handle & ((int64_t{1} << kHandleBits) - 1); }
// A function that computes handles. Tests of collisions use another one than SampleHandle.
using HandleFunction = std::function<int64_t(absl::string_view)>;

// How errors name a sample: by its id, or "with handle 5" if `sample` is empty.
std::string DescribeSample(absl::string_view sample, int64_t handle);

// How safely an acknowledged append is stored. Ascending: each level includes those before it. Values are those of the
// wire (Durability in common.proto).
enum class Durability : uint8_t {
  kMemory = 1,   // In the memory of a process: lost if that process ends.
  kWritten = 2,  // Given to the operating system or to another process: lost if the machine fails.
  kSynced = 3,   // On the disk.
};

// "memory", "written", "synced".
const char* DurabilityName(Durability durability);
// Nothing if `name` is not a durability.
std::optional<Durability> DurabilityFromName(absl::string_view name);

inline constexpr int64_t kUnknownWeightVersion = -1;

// Rows of one weight version.
struct WeightSpan {
  RowRange rows;
  int64_t version = kUnknownWeightVersion;
  std::string label;  // For engines whose versions are strings.
  friend bool operator==(const WeightSpan&, const WeightSpan&) = default;
};

// CRC32C over the token ids (u32 little-endian) of positions 0 … rows - 1.
struct TokenCheck {
  int64_t rows = 0;
  uint32_t crc32c = 0;
  friend bool operator==(const TokenCheck&, const TokenCheck&) = default;
};

// The state of one sample, without its rows.
struct SampleState {
  std::string sample;
  int64_t handle = 0;
  Producer producer = Producer::kRollout;
  int64_t group = 0;
  int64_t committed_rows = 0;         // Includes unrecorded rows.
  std::optional<int64_t> num_tokens;  // T, once sealed.
  int64_t revision = 0;
  uint64_t content_id = 0;
  std::vector<RowRange> unrecorded;  // Normal list.
  std::vector<WeightSpan> weights;   // Covers [0, committed_rows), neighbours differ.
  int64_t stored_bytes = 0;
  std::optional<TokenCheck> token_check;  // The check at committed_rows, if known.
  std::string engine;                     // That of the first append.
  int64_t idle_ms = 0;

  bool sealed() const { return num_tokens.has_value(); }
};

// What a reader requests of one sample; the fields are those of SampleRead in read.proto.
struct SampleRead {
  std::string sample;
  int64_t handle = 0;  // Used where sample is empty.
  // The rows to read, as a normal list. Empty: all committed rows; with ReadRequest::wait, those of the sealed sample.
  std::vector<RowRange> rows;
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
  bool wait = false;  // Wait where the status would be kNotReady, and for samples that do not exist yet.
  int32_t max_message_bytes = 0;
  bool only_begun = false;  // With `wait`: do not wait for samples that do not exist yet.
};

// Numbers are those of SampleRecord.SampleStatus.
enum class SampleStatus : uint8_t {
  kUnspecified = 0,
  kOk = 1,
  kNotFound = 2,
  kNotRecorded = 3,
  kNotReady = 4,
  kLost = 5,
  kVersionRejected = 6,
  kLengthMismatch = 7,
  kTokensMismatch = 8,
  kOutOfRange = 9,
  kUnavailable = 10,
  kTokensNotKnown = 11,
};
inline constexpr SampleStatus kLastSampleStatus = SampleStatus::kTokensNotKnown;
const char* SampleStatusName(SampleStatus status);

// What the server answers for each sample of a ReadRequest.
struct SampleRecord {
  int32_t index = 0;  // Position in ReadRequest::samples.
  SampleStatus status = SampleStatus::kUnspecified;
  std::string message;
  int64_t committed_rows = 0;
  std::optional<int64_t> num_tokens;
  int64_t revision = 0;
  uint64_t content_id = 0;  // 0 if there is none.
  std::vector<RowRange> unrecorded;
  std::vector<WeightSpan> weights;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_SAMPLE_H_
