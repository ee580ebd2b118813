// What is known of one sample without its rows: the C++ form of SampleState in common.proto.
#ifndef ROUTING_REPLAY_WIRE_SAMPLE_STATE_H_
#define ROUTING_REPLAY_WIRE_SAMPLE_STATE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample_id.h"

namespace routing_replay {

inline constexpr int64_t kUnknownWeightVersion = -1;

// Rows of one weight version.
struct WeightSpan {
  RowRange rows;
  int64_t version = kUnknownWeightVersion;
  std::string label;  // For engines whose versions are strings.
  friend bool operator==(const WeightSpan&, const WeightSpan&) = default;
};

// Where rows came from: consecutive appends of one engine under one weight version, that of rows.begin the first.
struct Provenance {
  RowRange rows;
  int64_t weight_version = kUnknownWeightVersion;
  std::string weight_label;
  std::string engine;   // As the appends said.
  int64_t appends = 0;  // Messages that committed rows here; those whose rows were truncated since stay counted.
  friend bool operator==(const Provenance&, const Provenance&) = default;
};

// CRC32C over the token ids (u32 little-endian) of positions 0 … rows - 1.
struct TokenCheck {
  int64_t rows = 0;
  uint32_t crc32c = 0;
  friend bool operator==(const TokenCheck&, const TokenCheck&) = default;
};

struct SampleState {
  std::string sample;
  int64_t handle = 0;
  Producer producer = Producer::kRollout;
  int64_t group = 0;
  int64_t committed_rows = 0;         // Unrecorded rows count.
  std::optional<int64_t> num_tokens;  // T, once sealed.
  int64_t revision = 0;
  uint64_t content_id = 0;
  std::vector<RowRange> unrecorded;  // Normal list.
  std::vector<WeightSpan> weights;   // Covers [0, committed_rows), neighbours differ.
  // Covers [0, committed_rows), neighbours differ in more than rows and appends. Empty from a server without it.
  std::vector<Provenance> provenance;
  int64_t stored_bytes = 0;
  std::optional<TokenCheck> token_check;  // At committed_rows, where known.
  std::string engine;
  int64_t idle_ms = 0;
  int64_t lost_end = 0;  // Rows from committed_rows up to here had been acknowledged and are lost; 0: none.

  bool sealed() const { return num_tokens.has_value(); }
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_SAMPLE_STATE_H_
