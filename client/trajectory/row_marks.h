// What a client remembers of rows that it has sent: enough to tell equal rows from other ones, not the rows.
#ifndef CLIENT_TRAJECTORY_ROW_MARKS_H_
#define CLIENT_TRAJECTORY_ROW_MARKS_H_

#include <cstdint>
#include <vector>

#include "proto/wire/payload/tensor_payload.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::client {

// One row of a sample.
struct RowMark {
  enum class Kind : uint8_t {
    kRecorded,
    kUnrecorded,
    kUnknown,  // Committed by somebody else: nothing to compare with.
  };
  Kind kind = Kind::kUnrecorded;
  // Of the ids of all MoE layers, in order. Two rows of one geometry that differ have equal digests by an accident of
  // about 1 in 2^64.
  uint64_t digest = 0;
  friend bool operator==(const RowMark&, const RowMark&) = default;
};

// Both have a route, and it is the same one.
inline bool SameRoute(const RowMark& a, const RowMark& b) {
  return a.kind == RowMark::Kind::kRecorded && b.kind == RowMark::Kind::kRecorded && a.digest == b.digest;
}

// One per row of rows.rows. Equal ids give equal marks whatever the codec and the cut into blocks. Thread-safe.
std::vector<RowMark> MarkRows(const Geometry& geometry, const DecodedRows& rows);

}  // namespace routing_replay::client

#endif  // CLIENT_TRAJECTORY_ROW_MARKS_H_
